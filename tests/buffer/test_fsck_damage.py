"""What fsck can't mend is named: files that are not what was written, and a catalog that does not agree with itself."""

import sqlite3

import pytest

from rft_core.buffer.compaction import compact
from rft_core.config import RetentionConfig
from tests.buffer.checking import COPY, NOTHING, ONE_COPY, break_catalog, look
from tests.buffer.table import Table, row


@pytest.mark.parametrize("folder", ["segments", "overlays", "evaluations"])
def test_a_file_that_is_altered_torn_or_gone_is_named_until_it_is_restored(used: Table, folder: str) -> None:
    path = min((used.run_dir.root / folder).iterdir())
    content = path.read_bytes()
    name = f"{folder}/{path.name}"
    altered = bytearray(content)
    altered[len(content) // 2] ^= 1
    for broken, problem in ((bytes(altered), "SHA-256 differs"), (content[:-1], "bytes"), (None, "is missing")):
        path.unlink()
        if broken is not None:
            path.write_bytes(broken)
        report = look(used)
        assert report.repaired == []
        (line,) = report.left
        assert line.startswith(name)
        assert problem in line
        assert "copy" in line
        path.write_bytes(content)
    assert look(used).left == []


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("update segments set rows = 5 where key = 'append-0'", "it has 4 rows, and the catalog says 5"),
        ("update segments set schema_version = 0 where key = 'append-0'", "it has columns of version 1, and the catalog says 0"),
        ("update groups set size = 3 where segment = 'append-0' and slot = 1", "has 2 attempts in it, and the catalog says 3"),
        ("update groups set segment = 'append-1' where segment = 'append-0' and slot = 1", "which the catalog does not have in it"),
        ("update overlays set pipeline = 'q' where key like '%append-0%'", "it is of the pipelines p, and the catalog says q"),
    ],
)
def test_a_file_that_is_not_what_the_catalog_says_is_named(used: Table, change: str, found: str) -> None:
    break_catalog(used, change)
    lines = [line for line in look(used).left if line.startswith(("segments/append-0", "overlays/p-append-0"))]
    assert len(lines) == 1
    assert found in lines[0]
    assert lines[0].endswith(ONE_COPY)


def test_an_id_that_two_rows_have_is_named_with_both_files(table: Table) -> None:
    first, second = table.lease(2)
    table.append("a", [first])
    rows = [row(second, attempt, experience_id=row(first, attempt).experience_id if attempt else "mine") for attempt in range(2)]
    table.store.append("b", rows, "explorer", 1)
    (line,) = look(table, redo_from=1).left
    uris = [table.segment_file(key).relative_to(table.run_dir.root).as_posix() for key in ("a", "b")]
    assert line == f"experience {row(first, 1).experience_id} is in {uris[0]}, {uris[1]}; an id names one row: {ONE_COPY}"


def test_ids_are_compared_although_another_file_is_gone(table: Table) -> None:
    first, second, third = table.lease(3)
    for key, lease in (("a", first), ("b", second)):
        table.append(key, [lease])
    table.store.append("c", [row(third, attempt, experience_id=row(first, attempt).experience_id) for attempt in range(2)], "explorer", 1)
    table.segment_file("b").unlink()
    missing, *twice = look(table, redo_from=1).left
    assert missing.startswith("segments/b-")
    assert len(twice) == 2
    table.segment_file("c").unlink()
    assert [line.partition("-")[0] for line in look(table, redo_from=1).left] == ["segments/b", "segments/c"]


def test_torn_answers_of_a_run_that_kept_no_hash_of_them_are_named(used: Table) -> None:
    break_catalog(used, "update evaluations set sha256 = null")
    (path,) = (used.run_dir.root / "evaluations").iterdir()
    for content in (path.read_bytes()[:-9], b""):
        path.write_bytes(content)
        (line,) = look(used).left
        assert line.startswith(f"evaluations/{path.name} of {used.storage.url} can't be read (")
        assert line.endswith(f"; {COPY}, or remove its evaluation and score that version again")


def test_a_file_that_a_pinned_state_or_a_claim_needs_is_missed(used: Table) -> None:
    path = used.segment_file("append-0")
    compact(used.open, NOTHING, redo_from=3)
    path.unlink()
    assert look(used).left == [f"segments/{path.name} is missing, and the state pinned as before needs it; {COPY}"]
    used.catalog.history.unpin("before")
    assert look(used, repair=False).left == [f"segments/{path.name} is missing, and steps from 3 on may be redone with it; {COPY}"]


def test_a_claim_that_must_be_redone_and_can_not_be_is_named(used: Table) -> None:
    break_catalog(used, "update groups set queue = null, status = 'stale' where queue is not null")
    used.catalog.history.unpin("before")
    compact(used.open, RetentionConfig(max_rows=1), redo_from=4, grace_s=0.0)
    (line,) = look(used, redo_from=3).left
    claim = used.catalog.claims.find(3)
    assert claim is not None
    needs = f"needs the rows of group {claim.group_ids[0]}, which are there no more"
    assert line == f"the batch of step 3, which may have to be redone, {needs}; {ONE_COPY}"


ISSUED_TWICE = """
insert into leases select 'x', step, slot, position, task_id, 1, explorer, issued_at, closed_at, 'expired', '', 0.0, null from leases
where slot = 5"""


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("delete from groups where slot = 5", "lease {lease} (step 1, slot 5) was stored, and has no group"),
        ("delete from leases where slot = 5", "group {group} is of lease {lease}, which is not there"),
        ("update leases set fate = null where slot = 5", "group {group} is ready, and its lease in_flight"),
        ("update leases set fate = 'expired' where slot = 5", "group {group} is ready, and its lease expired"),
        ("update groups set status = 'late', queue = null where slot = 5", "group {group} is late, and its lease stored"),
        ("update leases set fate = 'lost' where slot = 5", "lease {lease} has the fate lost, which nothing here gives"),
        ("update groups set status = 'odd', queue = null where slot = 5", "group {group} has the status odd, which nothing here gives"),
        ("update groups set queue = 'labels' where slot = 5", "group {group} is ready, and waits for labels"),
        ("update groups set status = 'pending' where slot = 5", "group {group} is pending, and waits for training"),
        ("update groups set status = 'stale' where slot = 5", "group {group} is stale, and waits for training"),
        ("update groups set queue = null where slot = 5", "group {group} is ready, and waits for nothing"),
        ("update groups set status = 'ready' where slot = 0", "group {first} was claimed by step 1, which is committed and neither"),
        ("update groups set trained_step = null where slot = 0", "group {first} is trained and was trained by step None, which don't"),
        ("update groups set trained_step = 2 where slot = 0", "group {first} was trained by step 2, whose claim does not name it"),
        ("delete from claims where step = 2", "step 2 is committed, and has no claim"),
        ("delete from claims where step = 2", "step 3 has a claim, and the step before has none"),
        ("delete from steps where step = 1", "step 2 is committed, and the step before is not"),
        ("update groups set uses = 7 where slot = 5", "groups were claimed 12 times, and the claims name 5"),
        ("update groups set claimed_step = 1 where claimed_step = 3", "the claim of step 3 names group {third}, which knows nothing of it"),
        ("update claims set groups = '[\"x\"]' where step = 3", "the claim of step 3 names group x, which is not there"),
        ("update labels set group_id = 'x'", "a label of experience {label} is of group x, which is not there"),
        ("update shaped set overlay = 'x' where group_id = '{group}'", "pipeline p says what it made of group {group} in overlay x, which"),
        ("update shaped set group_id = 'x' where group_id = '{group}'", "group {group} waits for training, and the run's pipeline has not"),
        ("update meta set value = 3 where key = 'sequence'", "labels have the sequence number 7, and the counter is at 3 only"),
        ("update meta set value = 3 where key = 'sequence'", "the claim of step 1 is read at state 7, and the newest one is 3"),
        ("update cursors set position = 5", "the cursor is at task 5, and 6 tasks were leased"),
        ("update groups set segment = 'x' where slot = 5", "group {group} is in segment x, which is not there"),
        (ISSUED_TWICE, "slot 5 of step 1 was issued again as epoch 1, and the issue before has neither expired nor failed"),
    ],
)
def test_a_catalog_that_does_not_agree_with_itself_is_named(used: Table, change: str, line: str) -> None:
    leases = used.catalog.leases.open(1) or used_leases(used)
    names = {
        "lease": leases[5],
        "group": used_groups(used)[5],
        "first": used_groups(used)[0],
        "third": used_groups(used)[4],
        "label": used_labels(used)[0],
    }
    break_catalog(used, change.format(**names) if "{group}" in change else change)
    report = look(used)
    assert [found for found in report.left if found.startswith(line.format(**names))], report.left
    assert all("; " in found for found in report.left)


def column(table: Table, query: str) -> list[str]:
    connection = sqlite3.connect(table.run_dir.catalog_file)
    found = [str(value) for (value,) in connection.execute(query)]
    connection.close()
    return found


def used_leases(table: Table) -> list[str]:
    return column(table, "select lease_id from leases order by slot")


def used_groups(table: Table) -> list[str]:
    return column(table, "select group_id from groups order by slot")


def used_labels(table: Table) -> list[str]:
    return column(table, "select experience_id from labels")


def test_many_breaches_of_one_kind_are_counted(table: Table) -> None:
    table.append("a", table.lease(30))
    break_catalog(table, "delete from groups")
    lines = [line for line in look(table, redo_from=1).left if line.startswith("lease ")]
    assert len(lines) == 21
    assert "and 10 more like it" in lines[-1]
