"""The drawing of a mode is what its bound and its interval allow."""

import pytest

from rft_core.plan.timeline import schedule


@pytest.mark.parametrize(
    ("bound", "interval", "overlaps", "sampled_by", "ends"),
    [
        (0, 1, False, [0, 1, 2, 3], 8),
        (1, 2, False, [0, 0, 2, 2], 8),
        (0, 1, True, [0, 1, 2, 3], 8),
        (1, 1, True, [0, 0, 1, 2], 5),
        (1, 2, True, [0, 0, 2, 2], 6),
        (4, 1, True, [0, 0, 1, 2], 5),
    ],
)
def test_each_begins_as_early_as_it_may(bound: int, interval: int, overlaps: bool, sampled_by: list[int], ends: int) -> None:
    rollouts, updates = schedule(bound, interval, overlaps, steps=4)
    assert [span.version for span in rollouts] == sampled_by
    assert updates[-1].begins + 1 == ends
    assert all(update.version - rollout.version <= bound for rollout, update in zip(rollouts, updates, strict=True))
