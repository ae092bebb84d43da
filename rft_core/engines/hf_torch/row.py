"""One request on its way through the `hf` engine. The only module here without torch: the light half makes rows."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rft_core.types import Completion, GenerationRequest, StopReason


@dataclass(slots=True, eq=False)
class Row:
    """A request, its random numbers, and what was sampled for it so far."""

    request: GenerationRequest
    limit: int
    """The most tokens that may be sampled."""
    uniforms_T: npt.NDArray[np.float64]
    """Shape (limit,), in [0, 1): one for each token, drawn at admission from the request's own seed."""
    on_start: Callable[[], object] = lambda: None
    """Told, in the computing thread, when the row is admitted."""
    withdrawn: bool = False
    """Set by the event loop when nobody waits any more; the computing thread drops the row at its next token."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def sort_key(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Where the row stands in a batch. Of equal orders the content decides, never the arrival."""
        return self.request.order, self.request.prompt_tokens, self.request.seed

    @property
    def num_cached(self) -> int:
        """Tokens whose keys and values are computed: the last sampled one is fed next."""
        return len(self.request.prompt_tokens) + len(self.tokens) - 1

    def take(self, token: int, logprob: float, eos_ids: frozenset[int]) -> StopReason | None:
        """Add a sampled token; tells why the row ended, if it did."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in eos_ids:
            return StopReason.EOS
        return StopReason.LENGTH if len(self.tokens) == self.limit else None

    def completion(self, stop_reason: StopReason, version: int) -> Completion:
        """What the request's caller gets; one version samples a whole row."""
        return Completion(tuple(self.tokens), tuple(self.logprobs), stop_reason, version, version)


def uniforms(seed: int, count: int) -> npt.NDArray[np.float64]:
    """The random numbers of one request: a Philox generator keyed by its seed.

    Args:
        seed: Not negative, below 2**128.
        count: How many.

    Returns:
        Shape (count,), in [0, 1).
    """
    return np.random.Generator(np.random.Philox(key=seed)).random(count)
