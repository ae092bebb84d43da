"""What was sampled last is trained first, and what lies too long becomes stale."""

from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_varied, row

FRESHEST = build("freshest_first")


def test_by_version_and_then_the_last_lease_first(table: Table) -> None:
    generation = table.take_over()
    append_varied(table, "a", [{"policy_version": version} for version in (1, 1, 3, 3, 2)])
    assert slots(table, table.choose(1, FRESHEST, generation, count=3, version=4)) == [3, 2, 4]
    assert slots(table, table.choose(2, FRESHEST, generation, count=3, version=4)) == [1, 0]


def test_what_waits_while_fresher_groups_come_becomes_stale(table: Table) -> None:
    generation = table.take_over()
    for step in (1, 2, 3):
        table.append(f"step-{step}", table.lease(2, step), policy_version=step - 1)
        claim = table.choose(step, FRESHEST, generation, count=1, max_staleness=1)
        assert claim.snapshot["staleness"] == 0
    assert claim.left_out == {"stale": 1}
    fates = [found["fate"] for found in table.look("select fate from fates order by step, slot")]
    assert fates == ["stale", "ready", "ready", "ready", "ready", "ready"]


def test_the_oldest_version_of_a_group_says_how_fresh_it_is(table: Table) -> None:
    generation = table.take_over()
    mixed, even = table.lease(2)
    versions = ((mixed, 5), (mixed, 1), (even, 3), (even, 2))
    rows = [row(lease, number % 2, policy_version=version) for number, (lease, version) in enumerate(versions)]
    table.store.append("a", rows, "e", 1)
    assert slots(table, table.choose(1, FRESHEST, generation, version=6)) == [1, 0]


def test_no_group_is_scored() -> None:
    assert FRESHEST.score([1.0, 0.0]) is None
