"""Train on what was sampled first."""

from collections import Counter
from collections.abc import Sequence

from rft_core.buffer.selection.base import Pool, Wanted, selectors, take
from rft_core.catalog import Choice
from rft_core.registry import ExtensionConfig


@selectors.register("oldest_first")
class OldestFirst:
    """Takes the groups of the oldest policy version first, in the order in which their tasks were leased. Nothing waits for long."""

    def __init__(self, config: ExtensionConfig) -> None:
        self._config = config

    def score(self, rewards: Sequence[float]) -> float | None:
        return None

    def choose(self, pool: Pool, wanted: Wanted) -> Choice:
        passed_over: Counter[str] = Counter()
        return Choice(take(pool.by("oldest"), wanted, passed_over), passed_over)
