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
