"""Virtual time: an event loop whose clock jumps to the next timer when nothing else is left to do. Standard library alone."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class Stalled(RuntimeError):
    """Everybody waits, and no timer is set: nothing would ever happen again."""


class _Selector(selectors.DefaultSelector):
    """Asks what is ready without waiting, and moves the clock by what the loop would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stalled("everybody waits, and no timer is set")
        found = super().select(0)
        if not found:
            self.now += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual seconds, from 0.

    What code hands to threads runs at once, in the loop's own thread, and takes no time: the clock can't jump over it.
    """

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(self, executor: Executor | None, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  as an executor does, it is raised where the future is awaited
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time.

    Raises:
        Stalled: It would wait for ever.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
