"""From the experience table to groups, and back to overlay rows."""

from collections.abc import Sequence
from itertools import groupby

from rft_core.buffer import Shaped, StoredGroup
from rft_core.operators.base import Attempt, Group
from rft_core.types import Experience


def group_of(stored: StoredGroup) -> Group:
    """A stored group as operators and trainers see it: with its overlay's rewards and drops where it has one."""
    attempts = [list(rows) for _, rows in groupby(stored.rows, key=lambda row: row.attempt)]
    return Group(stored.group_id, tuple(_attempt(rows, stored) for rows in attempts))


def shaped_rows(groups: Sequence[Group]) -> list[Shaped]:
    """What the overlay says of each row."""
    return [
        Shaped(row.experience_id, attempt.reward, attempt.dropped_by, attempt.drop_reason or None)
        for group in groups
        for attempt in group.attempts
        for row in attempt.rows
    ]


def dropped_groups(groups: Sequence[Group]) -> dict[str, str]:
    """The groups of which operators left nothing, with operator and reason; groups that failed by themselves are not among them."""
    dropped: dict[str, str] = {}
    for group in groups:
        if not group.live():
            first = next((attempt for attempt in group.attempts if attempt.dropped_by), None)
            if first is not None:
                dropped[group.group_id] = f"{first.dropped_by}: {first.drop_reason}"
    return dropped


def _attempt(rows: list[Experience], stored: StoredGroup) -> Attempt:
    shaped = stored.shaped.get(rows[0].experience_id)
    if shaped is None:
        return Attempt(tuple(rows), rows[-1].reward)
    return Attempt(tuple(rows), shaped.shaped_reward, shaped.dropped_by, shaped.drop_reason or "")
