"""Train only on what a condition in SQL holds for, whichever selection chooses among it."""

from collections import Counter
from collections.abc import Collection, Iterator

from rft_core.buffer.selection.base import Pool
from rft_core.catalog import Candidate
from rft_core.catalog.candidates import Order

NOT_MATCHED = "where"
"""The reason under which groups are counted that the condition does not hold for."""


class Matching:
    """The groups of a pool that a condition holds for.

    The condition is asked before the claim's transaction, since it reads segments: what was stored in between is for the next step.

    Args:
        pool: All that wait for training.
        group_ids: Those with at least one row that the condition holds for.
    """

    def __init__(self, pool: Pool, group_ids: Collection[str]) -> None:
        self._pool = pool
        self._group_ids = group_ids
        self.passed_over: Counter[str] = Counter()
        """How many groups the walks so far passed over."""

    def by(self, order: Order, source: str | None = None) -> Iterator[Candidate]:
        for candidate in self._pool.by(order, source):
            if candidate.group_id in self._group_ids:
                yield candidate
            else:
                self.passed_over[NOT_MATCHED] += 1
