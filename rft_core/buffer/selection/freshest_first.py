"""Train on what was sampled last."""

from collections import Counter
from collections.abc import Sequence

from rft_core.buffer.selection.base import Pool, Wanted, selectors, take
from rft_core.catalog import Choice
from rft_core.registry import ExtensionConfig


@selectors.register("freshest_first")
class FreshestFirst:
    """Takes the groups of the newest policy version first: closest to on-policy. What lies too long becomes stale."""

    def __init__(self, config: ExtensionConfig) -> None:
        self._config = config

    def score(self, rewards: Sequence[float]) -> float | None:
        return None

    def choose(self, pool: Pool, wanted: Wanted) -> Choice:
        passed_over: Counter[str] = Counter()
        return Choice(take(pool.by("freshest"), wanted, passed_over), passed_over)
