"""What the `hf` engine does in its computing thread: load weights, run batches, score."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from rft_core.engines.hf_torch.model import CausalModel, load_module
from rft_core.engines.hf_torch.row import Row, uniforms
from rft_core.engines.hf_torch.wave import Wave
from rft_core.errors import EngineError, ModelError
from rft_core.types import Completion, GenerationRequest, StopReason

PROBE = ((1, 2, 3, 4), (1, 2, 5, 6, 7, 8), (1, 2, 3, 4))
"""Prompts of the check below: of two lengths, with a common start, one of them twice."""
PROBE_TOKENS = 3


class Runner:
    """Holds one version's weights. All methods run in the one computing thread.

    Args:
        max_context: Longest sequence, in tokens.
        dtype: What weights loaded from a folder are held in.
        max_rows: The most rows decoded at once.
        prefill_tokens: Prompt tokens that pass the model at once.
        eos_ids: Tokens that end a row.
    """

    def __init__(self, *, max_context: int, dtype: str, max_rows: int, prefill_tokens: int, eos_ids: frozenset[int]) -> None:
        self._max_context = max_context
        self._dtype = dtype
        self._sizes = {"max_rows": max_rows, "prefill_tokens": prefill_tokens}
        self._eos_ids = eos_ids
        self._model: CausalModel | None = None
        self._checked: set[str] = set()
        self.version = -1
        """The version of the weights; -1 before the first ones."""

    @property
    def vocab_size(self) -> int | None:
        """Number of rows of the embedding; null before the first weights."""
        return None if self._model is None else self._model.vocab_size

    def load(self, version: int, source: Path | Any) -> None:
        """Use other weights. Nothing computed with the old ones is kept, and their memory is freed first.

        Raises:
            ModelError: They can't be loaded, or the engine can't run a model of this kind.
        """
        self._model = None
        module = load_module(source, self._dtype) if isinstance(source, Path) else source
        model = CausalModel(module, self._max_context)
        kind = f"{type(module).__qualname__} {module.config.to_json_string()}"
        if kind not in self._checked:
            self._check(model)
            self._checked.add(kind)
        self._model, self.version = model, version

    def run(self, rows: Sequence[Row], finish: Callable[[Row, Completion], None]) -> None:
        """Decode a batch of rows.

        Args:
            rows: In any order; they are decoded by their own.
            finish: Told about each finished row at once.

        Raises:
            EngineError: There are no weights, or they give no finite logits.
        """
        model, version = self._loaded(), self.version
        self._decode(model, rows, self._eos_ids, lambda row, stop_reason: finish(row, row.completion(stop_reason, version)))

    def score(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Log-probs of tokens after the first, by one plain pass.

        Raises:
            EngineError: There are no weights.
        """
        model = self._loaded()
        with model.borrowed():
            return tuple(model.logprobs(tokens))

    def drop(self) -> None:
        """Forget the weights."""
        self._model = None

    def _decode(self, model: CausalModel, rows: Sequence[Row], eos_ids: frozenset[int], finish: Callable[[Row, StopReason], None]) -> None:
        with model.borrowed():
            Wave(model, sorted(rows, key=lambda row: row.sort_key), eos_ids=eos_ids, finish=finish, **self._sizes).run()

    def _loaded(self) -> CausalModel:
        if self._model is None:
            raise EngineError("no weights are loaded", "call `load` first; if that failed, its error says why")
        return self._model

    def _check(self, model: CausalModel) -> None:
        """Compare the engine's log-probs with those of a plain pass.

        Architectures differ in what they make of masks, positions and caches; some take the engine's and quietly
        compute something else.
        """
        if self._max_context < max(map(len, PROBE)) + PROBE_TOKENS or model.vocab_size <= max(map(max, PROBE)):
            return
        rows = [_probe_row(prompt) for prompt in PROBE]
        try:
            self._decode(model, rows, frozenset(), lambda row, stop_reason: None)
            plain = [self._plain(model, row) for row in rows]
        except (EngineError, TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError, NotImplementedError) as error:
            raise ModelError(f"the hf engine can't run {type(model.module).__name__} ({error})", "use another engine for it") from error
        difference = max(abs(a - b) for row, values in zip(rows, plain, strict=True) for a, b in zip(row.logprobs, values, strict=True))
        # Norms and rotations are computed in float32 by most architectures, whatever the dtype.
        tolerance = 10 * max(torch.finfo(model.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5
        name = type(model.module).__name__
        if not difference <= tolerance:
            raise ModelError(
                f"the hf engine's log-probs of {name} differ from a plain pass by {difference:.1e}, more than {tolerance:.1e}",
                "this architecture does not follow the engine's masks or positions: use another engine for it",
            )

    @staticmethod
    def _plain(model: CausalModel, row: Row) -> list[float]:
        with model.borrowed():
            return model.logprobs([*row.request.prompt_tokens, *row.tokens])[-len(row.tokens) :]


def _probe_row(prompt: tuple[int, ...]) -> Row:
    request = GenerationRequest(prompt, PROBE_TOKENS, temperature=1.0, seed=len(prompt))
    return Row(request, PROBE_TOKENS, uniforms(request.seed, PROBE_TOKENS))
