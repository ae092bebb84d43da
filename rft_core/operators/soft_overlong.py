"""Punish answers that come near the token limit."""

from dataclasses import replace

from pydantic import NonNegativeFloat, PositiveInt

from rft_core.errors import ConfigError
from rft_core.operators.base import Attempt, Group, operators
from rft_core.registry import ExtensionConfig


class SoftOverlongConfig(ExtensionConfig):
    """Arguments of `soft_overlong`."""

    cache_tokens: PositiveInt
    """Length of the band below the limit in which the penalty grows."""
    factor: NonNegativeFloat = 1.0
    """The largest penalty."""
    max_tokens: PositiveInt | None = None
    """The limit that the band ends at; `rollout.max_tokens` if left out."""


@operators.register("soft_overlong", config=SoftOverlongConfig)
class SoftOverlong:
    """Add DAPO's soft overlong punishment to the reward (arXiv 2503.14476, equation 13).

    With L the limit, c the band, f the factor and n the answer's tokens: 0 if n <= L - c, else (L - c - n) / c * f, and never
    below -f.
    """

    needs_rewards = True

    def __init__(self, config: SoftOverlongConfig, max_tokens: int) -> None:
        self._limit = config.max_tokens or max_tokens
        self._band = config.cache_tokens
        self._factor = config.factor
        if self._band > self._limit:
            raise ConfigError("cache_tokens", self._band, f"the band can't be longer than the limit of {self._limit} tokens")

    def penalty(self, num_tokens: int) -> float:
        """What is added to the reward of an answer of so many tokens: from 0 down to -factor."""
        over = num_tokens - (self._limit - self._band)
        return -self._factor * min(max(over, 0) / self._band, 1.0)

    def __call__(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(replace(group, attempts=tuple(map(self._shaped, group.attempts))) for group in groups)

    def _shaped(self, attempt: Attempt) -> Attempt:
        if attempt.reward is None or attempt.dropped_by is not None:
            return attempt
        penalty = self.penalty(attempt.num_response_tokens)
        return replace(attempt, reward=attempt.reward + penalty) if penalty else attempt
