"""Work that goes on beside the loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def beside() -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Let one thing at a time go on beside the loop: the next one waits for it, and so does the end of the block.

    What fails there fails the loop. When the loop fails, what is under way is let to end: a thread can't be stopped,
    and must not work on parts that are being closed.

    Yields:
        Starts `function(*args)`, once what was started before has ended.
    """
    current: asyncio.Task[Any] | None = None

    async def start(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        nonlocal current
        if current is not None:
            await current
        current = asyncio.create_task(function(*args))

    try:
        yield start
        if current is not None:
            await current
    finally:
        if current is not None:
            await asyncio.gather(current, return_exceptions=True)


@asynccontextmanager
async def alongside(work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Let work go on for as long as the block lasts. Where it fails the block is cancelled, and its error raised in the place of that."""
    owner = asyncio.current_task()
    assert owner is not None, "a coroutine runs in a task"
    going_on = asyncio.create_task(work)

    def stop_the_block(ended: asyncio.Task[Any]) -> None:
        if not ended.cancelled() and ended.exception() is not None:
            owner.cancel()

    going_on.add_done_callback(stop_the_block)
    try:
        yield
    except asyncio.CancelledError:
        error = going_on.exception() if going_on.done() and not going_on.cancelled() else None
        if error is None:
            raise
        owner.uncancel()
        raise error from None
    finally:
        going_on.remove_done_callback(stop_the_block)
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
