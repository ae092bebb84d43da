"""fsck: what it verifies, what it mends, and what it leaves alone."""

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rft_core.buffer import Shaped
from rft_core.buffer.compaction import compact
from rft_core.buffer.fsck import Report, fsck
from rft_core.catalog import HELD_OUT, Evaluation, Label, Lease, StepRow
from rft_core.config import RetentionConfig
from tests.buffer.table import Table, group_id, row
from tests.servers import Bucket

COPY = "restore it from a copy of the run"
ONE_COPY = "restore the catalog and the files from one copy of the run"
RESTORE = "the catalog was changed by something else: restore it from a copy"
MENDS = "`rft fsck` without --check mends it"
NOTHING = RetentionConfig()


def fill(table: Table) -> list[Lease]:
    """Three segments, overlays, labels, answers, a pinned state, two trained steps and a claim that is not trained yet."""
    generation = table.take_over()
    leases = table.lease(6)
    for number in range(3):
        mine = leases[2 * number : 2 * number + 2]
        table.append(f"append-{number}", mine)
        shape(table, f"append-{number}", mine)
    table.catalog.labels.add([Label("l", row(leases[5]).experience_id, group_id(leases[5]), "reward", 0.5, "ada")], "training")
    table.catalog.history.pin("before")
    for step in (1, 2):
        claim = table.claim(step, generation, 2)
        table.catalog.claims.commit_step(StepRow(step, "trained", step, {}, None, 1.0, 0.0), claim.group_ids, {}, generation)
    table.claim(3, generation, 1)
    answer = {"version": 2, "task_id": "t", "prompt_text": "?", "response_text": "!", "answer": "!", "reward": 1.0, "exact": True}
    file = table.store.write_answers("held_out-v000002", [answer | {"reason": "", "error": None}])
    table.catalog.versions.record_evaluation(Evaluation(HELD_OUT, 2, {"evaluation/reward": 1.0}, file.uri, file.sha256))
    return leases


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a filled table; copy it, never write to it."""
    table = Table(tmp_path_factory.mktemp("filled") / "run", pipeline="p")
    fill(table)
    table.close()
    return table.run_dir.root


@pytest.fixture
def used(filled: Path, tmp_path: Path) -> Iterator[Table]:
    """A filled table of its own for each test."""
    shutil.copytree(filled, tmp_path / "run")
    table = Table(tmp_path / "run", pipeline="p")
    yield table
    table.close()


def shape(table: Table, segment: str, leases: Sequence[Lease]) -> None:
    shaped = {group_id(lease): [Shaped(row(lease, attempt).experience_id, 0.5) for attempt in range(2)] for lease in leases}
    table.store.overlay(segment, shaped, [], {})


def look(table: Table, **changes: object) -> Report:
    """As the command looks, at a table in which nothing was written just now."""
    settings: dict[str, object] = {"grace_s": 0.0, "redo_from": 3}
    return fsck(table.open, **{**settings, **changes})  # type: ignore[arg-type]


def break_catalog(table: Table, *statements: str) -> None:
    with sqlite3.connect(table.run_dir.catalog_file) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def tree(table: Table) -> dict[str, bytes]:
    """Every file of the table's folders."""
    folders = [table.run_dir.root / name for name in ("segments", "overlays", "evaluations")]
    return {str(path): path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_whole_table_is_clean_and_everything_is_counted(used: Table) -> None:
    report = look(used)
    assert (report.left, report.repaired) == ([], [])
    sizes = [path.stat().st_size for folder in ("segments", "overlays") for path in (used.run_dir.root / folder).iterdir()]
    assert report.checked == {
        "segments": 3,
        "overlays": 3,
        "answers": 1,
        "rows": 12,
        "bytes": sum(sizes),
        "leases": 6,
        "groups": 6,
        "labels": 1,
        "claims": 3,
        "steps": 2,
    }


def test_a_new_table_is_clean(tmp_path: Path) -> None:
    table = Table(tmp_path / "run")
    report = look(table)
    assert (report.left, report.repaired, report.checked["rows"]) == ([], [], 0)
    table.close()


def test_postgres_and_an_object_store_are_verified_the_same(postgres_url: str, s3_bucket: Bucket, tmp_path: Path) -> None:
    table = Table(tmp_path / "run", postgres_url, s3_bucket.url, s3_bucket.options, pipeline="p")
    first = fill(table)[0]
    report = look(table)
    assert (report.left, report.repaired, report.checked["rows"]) == ([], [], 12)
    with table.catalog._database.write() as connection:
        connection.exec_driver_sql("update groups set uses = 7, queue = 'labels' where slot = 0")
    assert [line.partition(";")[0].partition(" ")[2] for line in look(table).left] == [
        f"{group_id(first)} is trained, and waits for labels",
        "were claimed 11 times, and the claims name 5",
    ]
    uri = table.catalog.segments.files()[0][1].uri
    table.storage.delete(uri)
    table.storage.write("segments/x.parquet", b"x")
    report = look(table)
    assert report.left[0] == f"{uri} is missing; {COPY}"
    assert report.repaired == ["segments/x.parquet is a file that nothing knows; deleted"]
    table.close()


def test_a_table_stays_clean_when_it_is_compacted(used: Table) -> None:
    compact(used.open, NOTHING, redo_from=3, grace_s=0.0)
    report = look(used)
    assert (report.left, report.repaired) == ([], [])
    assert report.checked["segments"] == 2 + 2, "one is merged of two, which the pinned state keeps; one still waits"
    used.catalog.history.unpin("before")
    compact(used.open, RetentionConfig(max_rows=4), redo_from=4, grace_s=0.0)
    report = look(used, redo_from=4)
    assert (report.left, report.repaired) == ([], [])
    assert report.checked["rows"] == 4


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


def test_what_a_killed_writer_left_is_taken_back_once_it_is_old(table: Table) -> None:
    table.append("a", table.lease(1))
    table.catalog.segments.intend("b", "segments/b-1.parquet", "explorer-9")
    table.storage.write("segments/b-1.parquet", b"half of it")
    torn = table.run_dir.root / "segments" / "c.parquet.tmp-01234567"
    torn.write_bytes(b"torn")
    table.storage.write("segments/d-1.parquet", b"of a writer whose intent was swept")
    before = tree(table)
    assert fsck(table.open) == fsck(table.open, repair=False)
    assert tree(table) == before, "all of it is young"
    assert [line.partition(";")[0] for line in look(table, repair=False).left] == [
        "segments/b-1.parquet was announced and never became part of the table",
        "segments/d-1.parquet is a file that nothing knows",
        "segments/c.parquet.tmp-01234567 is what a killed writer left",
    ]
    assert tree(table) == before
    assert len(look(table).repaired) == 3
    assert [path.name.partition("-")[0] for path in (table.run_dir.root / "segments").iterdir()] == ["a"]
    assert look(table) == look(table, repair=False)
    assert table.catalog.segments.intended_uris() == []


def test_a_writer_whose_intent_was_taken_back_fails_cleanly(table: Table) -> None:
    (lease,) = table.lease(1)
    write = table.storage.write

    def swept_meanwhile(uri: str, data: bytes) -> None:
        write(uri, data)
        look(table)

    table.storage.write = swept_meanwhile  # type: ignore[method-assign,assignment]
    with pytest.raises(Exception, match="was taken back by another process"):
        table.append("a", [lease])
    assert tree(table) == {}
    assert table.catalog.leases.fates() == {"in_flight": 1}


def test_files_that_no_writer_of_this_catalog_made_are_named_and_stay(used: Table) -> None:
    (used.run_dir.root / "segments" / "notes.txt").write_text("mine")
    old, path = used.run_dir.root / "old", used.segment_file("append-2")
    break_catalog(
        used,
        "delete from groups where segment = 'append-2'",
        "delete from leases where slot >= 4",
        "delete from segments where key = 'append-2'",
    )
    report = look(used)
    assert not old.exists()
    assert path.exists()
    assert report.repaired == []
    assert "segments/notes.txt is no file of the table; move it elsewhere" in report.left
    (newer,) = [line for line in report.left if line.startswith("segments/append-2")]
    assert newer.endswith("the catalog is older than it: restore a newer copy, or move the file elsewhere")


def test_nothing_is_deleted_for_a_catalog_that_is_empty(used: Table, tmp_path: Path) -> None:
    before = tree(used)
    used.catalog.close()
    used.run_dir.catalog_file.rename(tmp_path / "elsewhere.db")
    emptied = Table(used.run_dir.root)
    report = look(emptied)
    assert report.repaired == []
    (line,) = report.left
    assert line.startswith("7 files lie in ")
    assert line.endswith("it is another run's, or was emptied: restore it from a copy")
    assert tree(emptied) == before
    emptied.close()


def test_files_that_ended_are_deleted_or_marked_once_nothing_needs_them(used: Table) -> None:
    merged = [used.segment_file(f"append-{number}") for number in range(2)]
    compact(used.open, NOTHING, redo_from=3)
    used.catalog.history.unpin("before")
    merged[0].unlink()
    assert [line.partition(", nothing")[0] for line in fsck(used.open, redo_from=4).repaired if "segments" in line] == [
        f"segments/{merged[0].name} ended"
    ], "the other one may still be read"
    assert merged[1].exists()
    report = look(used, redo_from=4)
    assert f"segments/{merged[1].name} ended, nothing needs it, and it is still there; deleted" in report.repaired
    assert not merged[1].exists()
    assert report.left == []
    assert look(used, redo_from=4).repaired == []


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


def test_leases_of_the_dead_expire(table: Table) -> None:
    table.catalog.leases.issue(1, 2, "explorer-9", lambda position: f"task-{position}", None, lease_s=0.0)
    time.sleep(0.002)
    found = "2 leases are of explorers that are not heard of any more"
    assert look(table, repair=False).left == [f"{found}; {MENDS}"]
    assert look(table).repaired == [f"{found}; expired"]
    assert table.catalog.leases.fates() == {"expired": 2}


ISSUED_TWICE = """
insert into leases select 'x', step, slot, position, task_id, 1, explorer, issued_at, closed_at, 'expired', '', 0.0 from leases
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


def test_a_table_is_clean_at_every_moment_of_work(table: Table) -> None:
    generation = table.take_over()
    over = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for step in range(1, 13):
                leases = table.lease(2, step)
                table.append(f"append-{step}", leases)
                claim = table.claim(step, generation, 2)
                trained = StepRow(step, "trained", step, {}, None, 1.0, 0.0)
                table.catalog.claims.commit_step(trained, claim.group_ids, {}, generation)
                if step % 3 == 0:
                    compact(table.open, NOTHING, redo_from=13, grace_s=0.0)
        except BaseException as error:  # noqa: BLE001 - the thread that waits for it raises it again
            failures.append(error)
        finally:
            over.set()

    worker = threading.Thread(target=work)
    worker.start()
    reports = [fsck(table.open, redo_from=13)]
    while not over.is_set():
        reports.append(fsck(table.open, redo_from=13))
    worker.join()
    reports.append(fsck(table.open, redo_from=13))
    assert failures == []
    assert [report.left for report in reports if report.left] == []
    assert [line for report in reports for line in report.repaired if not line.endswith("it is gone; marked as deleted")] == []
    assert reports[-1].checked["rows"] == 48


def test_times_are_compared_with_the_grace(table: Table) -> None:
    table.append("a", table.lease(1))
    table.storage.write("segments/x.parquet", b"x")
    path = table.run_dir.root / "segments" / "x.parquet"
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    assert fsck(table.open, grace_s=7200.0).repaired == []
    assert len(fsck(table.open, grace_s=1800.0).repaired) == 1
    assert not path.exists()
