"""Train on what promises most, and perhaps more than once: prioritised replay of whole groups."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from rft_core.buffer.selection.base import Pool, Wanted, selectors, take
from rft_core.catalog import Choice, Reuse
from rft_core.registry import ExtensionConfig


class PriorityConfig(ExtensionConfig):
    """Arguments of `priority`."""

    by: Literal["recency", "reward_spread", "label"] = "reward_spread"
    """What a group's priority is at first: nothing, so that the freshest come first; the standard deviation of its rewards, the
    signal that a group method learns from; or nothing until a label of the field `priority` sets it."""
    decay: NonNegativeFloat = 0.1
    """What the priority loses with each use."""
    max_uses: PositiveInt = 1
    """Steps that may train on one group; 1 is no replay."""
    cool_down: NonNegativeInt = 0
    """Steps between two uses of a group."""


@selectors.register("priority", config=PriorityConfig)
class Priority:
    """Takes the groups of highest priority first, the freshest of equals.

    After Schaul et al. 2015 (arXiv 1511.05952), with the group in the place of the transition and taking in order in the place
    of sampling: the same table gives the same batch. A label of the field `priority` sets a group's priority at any time.
    """

    def __init__(self, config: PriorityConfig) -> None:
        self._config = config

    def score(self, rewards: Sequence[float]) -> float | None:
        if self._config.by != "reward_spread":
            return None
        return statistics.pstdev(rewards) if rewards else 0.0

    def choose(self, pool: Pool, wanted: Wanted) -> Choice:
        passed_over: Counter[str] = Counter()
        taken = take(pool.by("priority"), wanted, passed_over)
        again_from = wanted.step + 1 + self._config.cool_down
        reuse = {
            group.group_id: Reuse(group.priority - self._config.decay, again_from)
            for group in taken
            if group.uses + 1 < self._config.max_uses
        }
        return Choice(taken, passed_over, reuse)
