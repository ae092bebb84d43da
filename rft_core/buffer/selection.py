"""Selection: which groups a step trains on. Whole groups only, all bounded by staleness."""

from collections.abc import Sequence
from dataclasses import dataclass

from rft_core.catalog import ReadyGroup


@dataclass(frozen=True, slots=True)
class Selected:
    """The batch of a step, and what can't be in any batch any more."""

    group_ids: tuple[str, ...]
    stale: tuple[str, ...]
    max_staleness_seen: int
    """Versions between the one that the step starts from and the oldest that sampled the batch."""


def oldest_first(ready: Sequence[ReadyGroup], count: int, version: int, max_staleness: int) -> Selected:
    """Take the oldest groups that are fresh enough.

    Args:
        ready: Candidates, oldest first.
        count: Groups of a full batch.
        version: The policy version that the step starts from.
        max_staleness: Most versions that a group may lie behind it.
    """
    fresh = [group for group in ready if version - group.lowest_version <= max_staleness]
    taken = fresh[:count]
    return Selected(
        group_ids=tuple(group.group_id for group in taken),
        stale=tuple(group.group_id for group in ready if version - group.lowest_version > max_staleness),
        max_staleness_seen=max((version - group.lowest_version for group in taken), default=0),
    )
