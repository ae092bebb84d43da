"""An engine that says what it is told to: for tests and notebooks, without a model and without torch."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from math import log
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeFloat

from rft_core.engines.base import engines
from rft_core.engines.requests import token_limit
from rft_core.errors import EngineError
from rft_core.registry import ExtensionConfig
from rft_core.tokens import Tokenizer
from rft_core.types import Completion, GenerationRequest, StopReason


class ScriptedConfig(ExtensionConfig):
    """What to answer. A prompt matches a text if it contains it; the first match counts."""

    answers: dict[str, tuple[str, ...]] = Field(default={})
    """The possible answers to prompts that contain the key."""
    default: tuple[str, ...] = ("",)
    """The possible answers to all other prompts; the empty one is an end-of-sequence token alone."""
    by_attempt: bool = False
    """True: attempt number n gives answer number n, round and round. False: the request's seed draws one."""
    delay_s: NonNegativeFloat = 0.0
    """How long each answer takes."""
    hang: tuple[str, ...] = ()
    """Prompts that contain one of these are never answered."""
    fail: tuple[str, ...] = ()
    """Prompts that contain one of these raise an EngineError."""


@engines.register("scripted", config=ScriptedConfig)
class ScriptedEngine:
    """Gives prepared answers; every token has the log-prob of a uniform choice among the vocabulary."""

    def __init__(self, config: ScriptedConfig, *, tokenizer: Tokenizer, max_context: int, dtype: str, compute: Executor) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._max_context = max_context
        self._logprob = -log(tokenizer.vocab_size)
        self.version = 0

    async def generate(self, request: GenerationRequest, on_start: Callable[[], None] = lambda: None) -> Completion:
        """Give the prepared answer, cut to `max_tokens`; greedy requests get the first of several."""
        on_start()
        limit = token_limit(request, self._max_context)
        version = self.version
        prompt = self._tokenizer.decode(request.prompt_tokens)
        if any(text in prompt for text in self._config.fail):
            raise EngineError("the script says that this prompt fails", "take it out of `fail`")
        if any(text in prompt for text in self._config.hang):
            await asyncio.Event().wait()
        await asyncio.sleep(self._config.delay_s)
        tokens = (*self._tokenizer.encode(self._answer(prompt, request)), self._tokenizer.eos_id)
        stop = StopReason.EOS if len(tokens) <= limit else StopReason.LENGTH
        kept = tokens[:limit]
        return Completion(kept, (self._logprob,) * len(kept), stop, version, self.version)

    async def score(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """The same log-prob for each token after the first."""
        return (self._logprob,) * (len(tokens) - 1)

    async def load(self, version: int, source: Path | Any) -> None:
        """Take over the number; a script has no weights."""
        self.version = version

    def expect(self, waiting: Callable[[], int]) -> None:
        """Nothing to do: answers don't depend on a batch."""

    async def close(self) -> None:
        """Nothing to free."""

    def _answer(self, prompt: str, request: GenerationRequest) -> str:
        choices = next((given for text, given in self._config.answers.items() if text in prompt), self._config.default)
        if self._config.by_attempt:
            return choices[request.order[1] % len(choices)]
        if request.temperature == 0:
            return choices[0]
        return choices[request.seed % len(choices)]
