"""What was sampled first is trained first."""

from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_varied

OLDEST = build("oldest_first")


def test_by_version_and_then_by_step_and_slot(table: Table) -> None:
    generation = table.take_over()
    append_varied(table, "a", [{"policy_version": version} for version in (3, 3, 1, 1, 2)])
    first = table.choose(1, OLDEST, generation, count=3, version=4)
    assert slots(table, first) == [2, 3, 4]
    assert first.left_out == {}
    assert slots(table, table.choose(2, OLDEST, generation, count=3, version=4)) == [0, 1]


def test_an_older_step_comes_before_a_newer_one_of_the_same_version(table: Table) -> None:
    generation = table.take_over()
    table.append("later", table.lease(1, step=9))
    table.append("earlier", table.lease(1, step=3))
    claim = table.choose(1, OLDEST, generation, count=1)
    assert table.look(f"select step from groups where group_id = '{claim.group_ids[0]}'") == [{"step": 3}]


def test_what_is_too_old_is_let_go_and_counted(table: Table) -> None:
    generation = table.take_over()
    append_varied(table, "a", [{"policy_version": version} for version in range(4)])
    claim = table.choose(5, OLDEST, generation, version=4, max_staleness=2)
    assert slots(table, claim) == [2, 3]
    assert claim.left_out == {"stale": 2}
    assert claim.snapshot["staleness"] == 2
    assert table.catalog.leases.of_step(1) == {0: "stale", 1: "stale", 2: "ready", 3: "ready"}
    # Not even a trainer that would allow more gets them back.
    assert table.choose(6, OLDEST, generation, version=4, max_staleness=100).group_ids == ()


def test_nothing_stored_is_an_empty_batch(table: Table) -> None:
    claim = table.choose(1, OLDEST, table.take_over())
    assert (claim.group_ids, claim.left_out, claim.snapshot["staleness"]) == ((), {}, 0)


def test_no_group_is_scored() -> None:
    assert OLDEST.score([1.0, 0.0]) is None
