"""What a run tells whoever watches it; the terminal's own way of showing it is in `flows.terminal`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Progress(Protocol):
    """Hears what a run does."""

    def begin(self, run: str, done: int, last: int) -> None:
        """The run is open: so many steps of so many are done."""
        ...

    def stage(self, step: int, stage: str) -> None:
        """The run starts to do something for a step."""
        ...

    def step(self, step: int, last: int, figures: Mapping[str, float]) -> None:
        """A step is committed."""
        ...

    def note(self, text: str) -> None:
        """Something that a person should know."""
        ...


class Silent:
    """Says nothing."""

    def begin(self, run: str, done: int, last: int) -> None: ...

    def stage(self, step: int, stage: str) -> None: ...

    def step(self, step: int, last: int, figures: Mapping[str, float]) -> None: ...

    def note(self, text: str) -> None: ...


SILENT = Silent()
_watcher: ContextVar[Progress] = ContextVar("watcher", default=SILENT)


@contextmanager
def watched_by(progress: Progress) -> Iterator[None]:
    """Let somebody hear the runs that are opened in this block; a flow's parameters must be plain values, so it can't be one."""
    token = _watcher.set(progress)
    try:
        yield
    finally:
        _watcher.reset(token)


def watcher() -> Progress:
    """Whoever watches here."""
    return _watcher.get()
