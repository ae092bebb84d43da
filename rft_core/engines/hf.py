"""The in-process engine: any causal language model of transformers, in batches.

This half talks to the event loop: it gathers requests into batches and hands out what was sampled. The half that
computes is `hf_torch`, which runs in one thread of its own and is imported when an engine is built.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from pydantic import NonNegativeFloat, PositiveInt

from rft_core.engines.base import engines
from rft_core.engines.hf_torch.row import Row, uniforms
from rft_core.engines.requests import token_limit
from rft_core.errors import EmptyPromptError, EngineError, PromptTooLongError
from rft_core.registry import ExtensionConfig
from rft_core.tokens import Tokenizer
from rft_core.types import Completion, GenerationRequest

POLL_S = 0.005
"""How often the number of attempts that may still ask is looked at; nobody tells when it falls."""


class HFConfig(ExtensionConfig):
    """Arguments of the `hf` engine."""

    max_rows: PositiveInt = 64
    """The most answers decoded at once; the next ones take the place of finished ones."""
    patience_s: NonNegativeFloat = 2.0
    """How long a batch waits after its last request for attempts that may still ask. A run is reproducible bit for bit
    only while environments take less than this between two turns."""
    prefill_tokens: PositiveInt = 2048
    """Prompt tokens that pass the model at once, each start that prompts have in common counted once."""


@engines.register("hf", config=HFConfig)
class HFEngine:
    """Samples from a transformers model in this process; prompts are computed once, finished rows make room.

    A batch is a closed set: requests that arrive while it runs wait for the next one. So what an answer is computed
    with depends on the order of requests, not on when they happen to arrive.
    """

    def __init__(self, config: HFConfig, *, tokenizer: Tokenizer, max_context: int, dtype: str, compute: Executor) -> None:
        from rft_core.engines.hf_torch.runner import Runner  # noqa: PLC0415  the heavy half

        self._runner = Runner(
            max_context=max_context,
            dtype=dtype,
            max_rows=config.max_rows,
            prefill_tokens=config.prefill_tokens,
            eos_ids=tokenizer.eos_ids,
        )
        self._max_context = max_context
        self._patience_s = config.patience_s
        self._compute = compute
        self._num_expected: Callable[[], int] = lambda: 0
        self._pending: list[Row] = []
        self._futures: dict[Row, asyncio.Future[Completion]] = {}
        self._quiet_since_s = 0.0
        self._pump: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The policy version that it samples with; -1 before the first `load`."""
        return self._runner.version

    async def generate(self, request: GenerationRequest, on_start: Callable[[], None] = lambda: None) -> Completion:
        """Complete one prompt, in a batch with whoever else asks; see `Engine.generate`.

        Raises:
            EmptyPromptError: The prompt has no tokens.
            PromptTooLongError: The prompt leaves no room for an answer.
            EngineError: There are no weights, the model failed on this batch, or the engine was closed.
        """
        limit = token_limit(request, self._max_context)
        if self._runner.vocab_size is not None and max(request.prompt_tokens) >= self._runner.vocab_size:
            found = f"the prompt holds token {max(request.prompt_tokens)} and the model knows {self._runner.vocab_size}"
            raise EngineError(found, "use the tokenizer of this model")
        loop = asyncio.get_running_loop()
        row = Row(request, limit, uniforms(request.seed, limit), on_start=lambda: loop.call_soon_threadsafe(on_start))
        future = self._futures[row] = loop.create_future()
        self._pending.append(row)
        self._quiet_since_s = loop.time()
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run_waves())
        try:
            completion: Completion = await future
        finally:
            row.withdrawn = True
            del self._futures[row]
            self._pending = [other for other in self._pending if other is not row]
        return completion

    async def score(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Log-probs by one plain pass over the sequence; see `Engine.score`.

        Raises:
            EmptyPromptError: There are no tokens.
            PromptTooLongError: There are more than the context holds.
            EngineError: There are no weights.
        """
        if not tokens:
            raise EmptyPromptError("there are no tokens to score", "give at least one")
        if len(tokens) > self._max_context:
            raise PromptTooLongError(f"{len(tokens)} tokens to score and the context holds {self._max_context}", "score a shorter sequence")
        return await asyncio.get_running_loop().run_in_executor(self._compute, self._runner.score, tuple(tokens))

    async def load(self, version: int, source: Path | Any) -> None:
        """Use other weights from the next batch on; a running batch ends first. See `Engine.load`.

        A module that lives in this process is used as it is, never copied; it is left in the mode it was found in.

        Raises:
            ModelError: The weights can't be loaded, or the engine can't run a model of this kind.
        """
        await asyncio.get_running_loop().run_in_executor(self._compute, self._runner.load, version, source)

    def expect(self, waiting: Callable[[], int]) -> None:
        """Start a batch when so many requests wait for it, or after `patience_s`."""
        self._num_expected = waiting

    async def close(self) -> None:
        """Fail what waits or runs, and free the weights."""
        self._fail(list(self._futures), "the engine was closed", "ask before it is")
        self._pending = []
        if self._pump is not None and not self._pump.done():
            await self._pump
        await asyncio.get_running_loop().run_in_executor(self._compute, self._runner.drop)

    async def _run_waves(self) -> None:
        """Run batches while anybody waits."""
        loop = asyncio.get_running_loop()
        while self._pending:
            while self._should_wait(loop.time()):  # noqa: ASYNC110  nobody tells when the expected number falls
                await asyncio.sleep(POLL_S)
            wave, self._pending = self._pending, []
            if wave:
                await self._run_wave(wave)
            # Whoever just got an answer needs a moment before the next question.
            self._quiet_since_s = loop.time()

    def _should_wait(self, now_s: float) -> bool:
        return 0 < len(self._pending) < self._num_expected() and now_s - self._quiet_since_s < self._patience_s

    async def _run_wave(self, wave: list[Row]) -> None:
        loop = asyncio.get_running_loop()

        def finish(row: Row, completion: Completion) -> None:
            loop.call_soon_threadsafe(self._answer, row, completion)

        try:
            await loop.run_in_executor(self._compute, self._runner.run, wave, finish)
        except EngineError as error:
            self._fail(wave, error.found, error.remedy)
        except Exception as error:  # noqa: BLE001  the model is foreign code: whatever it raises is the answer to these requests
            self._fail(wave, f"the model failed on a batch of {len(wave)} ({type(error).__name__}: {error})", "see the engine's settings")
        finally:
            for row in wave:
                row.withdrawn = True

    def _answer(self, row: Row, completion: Completion) -> None:
        future = self._futures.get(row)
        if future is not None and not future.done():
            future.set_result(completion)

    def _fail(self, rows: Sequence[Row], found: str, remedy: str) -> None:
        for row in rows:
            row.withdrawn = True
            future = self._futures.get(row)
            if future is not None and not future.done():
                future.set_exception(EngineError(found, remedy))
