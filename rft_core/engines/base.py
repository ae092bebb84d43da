"""What every engine gives."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rft_core.registry import Registry
from rft_core.types import Completion, GenerationRequest


class Engine(Protocol):
    """Samples completions of one policy version at a time."""

    version: int
    """The policy version that it samples with."""

    async def generate(self, request: GenerationRequest, on_start: Callable[[], None] = lambda: None) -> Completion:
        """Complete one prompt. Many requests may wait at once; the engine batches them by `request.order`.

        Cancelling the call withdraws the request.

        Args:
            request: What to complete.
            on_start: Called in the event loop when the engine begins with the request: until then it only waits for others.

        Raises:
            PromptTooLongError: The prompt leaves no room for an answer.
            EngineError: The engine could not answer.
        """
        ...

    async def score(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Natural log-prob, at temperature 1, of each token after the first: length `len(tokens) - 1`."""
        ...

    async def load(self, version: int, source: Path | Any) -> None:
        """Use other weights from the next request on; caches of the old ones are dropped.

        Args:
            version: The number of the weights.
            source: A Hugging Face folder, or a module that lives in this process (sync method `shared`).
        """
        ...

    def expect(self, waiting: Callable[[], int]) -> None:
        """Say how to find out how many attempts may still ask for tokens.

        An engine that batches starts a batch when all of them wait for it, so that in sync mode the same requests
        meet in the same batch every time. Engines whose answers don't depend on the batch may ignore it.
        """
        ...

    async def close(self) -> None:
        """Free what the engine holds."""
        ...


engines: Registry[Engine] = Registry("engine", "rft_core.engines")
"""Engines are built as `cls(config, tokenizer=Tokenizer, max_context=int, dtype=str, compute=Executor)`.

`compute` is the one thread in which everything that computes runs."""
