"""From the experience table to groups, and back to overlay rows."""

from collections.abc import Sequence

from rft_core.buffer import Shaped, StoredGroup
from rft_core.operators.base import Attempt, Group
from rft_core.types import Experience


def group_of(stored: StoredGroup) -> Group:
    """A stored group as operators and trainers see it: with its overlay's rewards and drops where it has one."""
    return Group(stored.group_id, tuple(_attempt(rows, stored) for rows in stored.attempts()))


def shaped_rows(groups: Sequence[Group]) -> dict[str, list[Shaped]]:
    """What the overlay says of each row, by group."""
    return {
        group.group_id: [
            Shaped(row.experience_id, attempt.reward, attempt.dropped_by, attempt.drop_reason or None)
            for attempt in group.attempts
            for row in attempt.rows
        ]
        for group in groups
    }


def dropped_groups(groups: Sequence[Group]) -> dict[str, str]:
    """The groups of which operators left nothing, with operator and reason; groups that failed by themselves are not among them."""
    dropped: dict[str, str] = {}
    for group in groups:
        if not group.live():
            first = next((attempt for attempt in group.attempts if attempt.dropped_by), None)
            if first is not None:
                dropped[group.group_id] = f"{first.dropped_by}: {first.drop_reason}"
    return dropped


def _attempt(rows: tuple[Experience, ...], stored: StoredGroup) -> Attempt:
    shaped = stored.shaped.get(rows[0].experience_id)
    if shaped is None:
        return Attempt(rows, stored.reward_of(rows))
    return Attempt(rows, shaped.shaped_reward, shaped.dropped_by, shaped.drop_reason or "")
