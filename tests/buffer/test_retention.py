"""How much of a table is kept: the oldest rows go first, and never those that are still to be trained or may be redone."""

import pytest

from rft_core.errors import SegmentError
from tests.buffer.compacting import check_files, everything, fill, squeeze
from tests.buffer.table import Table, append_each


def age(table: Table, **days: float) -> None:
    """Make appends older, by key."""
    with table.catalog._database.write() as connection:
        for key, old in days.items():
            moved = f"update segments set created_at = created_at - {old * 86_400} where key = '{key.replace('_', '-')}'"
            connection.exec_driver_sql(moved)


def left(table: Table) -> list[int]:
    """The steps whose rows are still there."""
    return [row["step"] for row in table.ask("select distinct step from experiences order by 1")]


def test_by_age(table: Table) -> None:
    fill(table)
    age(table, step_1=8, step_2=6.9)
    assert squeeze(table, max_age_days=7).let_go == 1
    assert left(table) == [2, 3]
    check_files(table)


@pytest.mark.parametrize(("max_rows", "steps"), [(12, [1, 2, 3]), (11, [2, 3]), (8, [2, 3]), (5, [3]), (4, [3]), (3, [])])
def test_by_rows(max_rows: int, steps: list[int], table: Table) -> None:
    fill(table)
    assert squeeze(table, target_bytes=1, max_rows=max_rows).let_go == 3 - len(steps)
    assert left(table) == steps
    assert len(table.files("segments")) == len(steps)


@pytest.mark.parametrize(("parts", "steps"), [(3.01, [1, 2, 3]), (2.9, [2, 3]), (1.1, [3]), (0.5, [])])
def test_by_bytes(parts: float, steps: list[int], table: Table) -> None:
    fill(table)
    size = max(file.bytes for _, file in table.catalog.segments.files())
    squeeze(table, target_bytes=1, max_bytes=int(parts * size))
    assert left(table) == steps


def test_what_is_waited_for_stays_and_the_next_oldest_goes(shaping: Table) -> None:
    append_each(shaping, "waits", [(None, None)], step=0)
    fill(shaping)
    squeeze(shaping, target_bytes=1, max_rows=6)
    assert left(shaping) == [0, 3]
    assert shaping.catalog.leases.fates() == {"pending": 1, "trained": 6}


def test_what_a_restart_may_have_to_redo_stays_until_it_may_not(shaping: Table) -> None:
    claims = fill(shaping)
    before = [shaping.store.groups(claim.group_ids, "p", claim.snapshot["sequence"]) for claim in claims]
    squeeze(shaping, redo_from=2, target_bytes=1, max_rows=1)
    assert left(shaping) == []
    for claim, read in list(zip(claims, before, strict=True))[1:]:
        assert shaping.store.groups(claim.group_ids, "p", claim.snapshot["sequence"]) == read
    squeeze(shaping, redo_from=4, target_bytes=1, max_rows=1)
    assert shaping.files("segments") == set()
    with pytest.raises(SegmentError, match="were let go; keep more of the table"):
        shaping.store.groups(claims[2].group_ids)


def test_a_pinned_state_keeps_what_retention_let_go(table: Table) -> None:
    fill(table)
    sequence = table.catalog.history.pin("paper")
    rows = table.ask("select * exclude (fate) from experiences order by experience_id")
    squeeze(table, target_bytes=1, max_rows=1)
    assert left(table) == []
    assert table.ask("select * from experiences order by experience_id", at=sequence) == rows
    table.catalog.history.unpin("paper")
    squeeze(table)
    assert table.files("segments") == set()


def test_fates_and_labels_outlive_their_rows(table: Table) -> None:
    fill(table)
    before = everything(table)
    squeeze(table, target_bytes=1, max_rows=1)
    after = everything(table)
    assert after["experiences"] == []
    for view in ("fates", "ledger", "labels", "steps", "claims", "leases"):
        assert after[view] == before[view]


def test_without_limits_nothing_goes(table: Table) -> None:
    fill(table)
    age(table, step_1=10_000)
    assert squeeze(table, target_bytes=1).let_go == 0
    assert left(table) == [1, 2, 3]


def test_a_merged_file_is_a_small_part_of_what_is_kept(table: Table) -> None:
    """Whole files are let go: one that holds everything would take everything with it."""
    generation = table.take_over()
    for step in range(1, 25):
        append_each(table, f"step-{step}", [(1, 0)], step)
        table.claim(step, generation)
        if step % 4 == 0:
            squeeze(table, max_rows=20)
    assert 18 <= len(table.ask("select * from experiences")) <= 20
    assert left(table)[-1] == 24


def test_files_of_other_ages_are_not_merged(table: Table) -> None:
    """Else a file would get younger with every merge, and its rows would never go."""
    fill(table, steps=6)
    age(table, step_1=6, step_2=5.9, step_3=3, step_4=2.9)
    assert squeeze(table, max_age_days=7).made <= 3
    assert len(table.files("segments")) >= 3


def test_a_merge_makes_no_row_younger(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small table is merged into one file again and again: its old rows must go all the same."""
    generation = table.take_over()
    for hour in range(1, 31):
        append_each(table, f"hour-{hour}", [(1, 0)], hour)
        with table.catalog._database.write() as connection:
            connection.exec_driver_sql(f"update segments set created_at = {3600 * hour} where key = 'hour-{hour}'")
        monkeypatch.setattr(table.catalog.history, "now", lambda now=3600.0 * hour: now)
        table.claim(hour, generation)
        squeeze(table, max_age_days=1)
        assert max(1, hour - 26) <= left(table)[0] <= max(1, hour - 23)  # a merged file goes when its newest rows do
    assert len(table.files("segments")) < 20


def test_the_oldest_rows_go_first_although_they_were_merged_last(table: Table) -> None:
    generation = table.take_over()
    append_each(table, "waits", [(1, 0)], step=3)
    for step in (1, 2):
        append_each(table, f"old-{step}", [(1, 0)], step)
        table.claim(step, generation, count=1)
    append_each(table, "new", [(1, 0)], step=4)
    squeeze(table)
    assert "compact" in table.catalog.segments.files()[-1][0]
    table.claim(5, generation)
    squeeze(table, target_bytes=1, max_rows=4)
    assert left(table) == [4]
