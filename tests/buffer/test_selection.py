"""Which groups a step trains on."""

from hypothesis import given
from hypothesis import strategies as st

from rft_core.buffer import Selected, oldest_first
from rft_core.catalog import ReadyGroup


def ready(*lowest_versions: int) -> list[ReadyGroup]:
    return [ReadyGroup(f"g{index}", index, 0, version) for index, version in enumerate(lowest_versions)]


def test_the_oldest_groups_that_are_fresh_enough_are_taken() -> None:
    found = oldest_first(ready(1, 3, 2, 3, 3), count=2, version=4, max_staleness=2)
    assert found == Selected(("g1", "g2"), ("g0",), 2)


def test_without_staleness_only_the_newest_version_counts() -> None:
    assert oldest_first(ready(2, 3, 3), count=8, version=3, max_staleness=0) == Selected(("g1", "g2"), ("g0",), 0)


def test_nothing_ready_is_an_empty_batch() -> None:
    assert oldest_first([], count=4, version=3, max_staleness=0) == Selected((), (), 0)


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 5), st.integers(0, 3))
def test_no_group_is_lost_or_too_old(versions: list[int], count: int, max_staleness: int) -> None:
    groups = ready(*versions)
    found = oldest_first(groups, count, version=6, max_staleness=max_staleness)
    taken, stale = set(found.group_ids), set(found.stale)
    assert len(found.group_ids) <= count
    assert not taken & stale
    assert {group.group_id for group in groups if 6 - group.lowest_version > max_staleness} == stale
    assert all(6 - group.lowest_version <= found.max_staleness_seen <= max_staleness for group in groups if group.group_id in taken)
    # Whoever was left out, though fresh, comes after all that were taken.
    left = [index for index, group in enumerate(groups) if group.group_id not in taken | stale]
    assert not left or (len(taken) == count and min(left) > max(int(one[1:]) for one in taken))
