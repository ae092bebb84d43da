"""fsck: what is clean, what it mends, and what it leaves alone."""

import os
import threading
import time
from pathlib import Path

import pytest

from rft_core.buffer.compaction import compact
from rft_core.buffer.fsck import fsck
from rft_core.catalog import HELD_OUT, Evaluation, StepRow
from rft_core.config import RetentionConfig
from tests.buffer.checking import COPY, NOTHING, break_catalog, fill, look
from tests.buffer.table import Table, group_id
from tests.servers import Bucket

MENDS = "`rft fsck` without --check mends it"


def tree(table: Table) -> dict[str, bytes]:
    """Every file of the table's folders."""
    folders = [table.run_dir.root / name for name in ("segments", "overlays", "evaluations")]
    return {str(path): path.read_bytes() for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()}


def swap_catalog(table: Table, copy: Path, restore: Path | None = None) -> None:
    """Copy the catalog, which nobody has open, and restore another copy of it."""
    table.catalog.close()
    copy.write_bytes(table.run_dir.catalog_file.read_bytes())
    if restore is not None:
        table.run_dir.catalog_file.write_bytes(restore.read_bytes())


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
    table.catalog.segments.intend("x", "segments/x.parquet", "explorer-9")
    table.storage.write("segments/x.parquet", b"x")
    report = look(table)
    assert report.left[0] == f"{uri} is missing; {COPY}"
    assert report.repaired == ["segments/x.parquet was announced and never became part of the table; taken back"]
    assert table.storage.size("segments/x.parquet") is None
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


def test_what_a_killed_writer_left_is_taken_back_once_it_is_old(table: Table) -> None:
    table.append("a", table.lease(1))
    table.catalog.segments.intend("b", "segments/b-1.parquet", "explorer-9")
    table.storage.write("segments/b-1.parquet", b"half of it")
    torn = table.run_dir.root / "segments" / "c.parquet.tmp-01234567"
    torn.write_bytes(b"torn")
    before = tree(table)
    assert fsck(table.open) == fsck(table.open, repair=False)
    assert tree(table) == before, "all of it is young"
    assert [line.partition(";")[0] for line in look(table, repair=False).left] == [
        "segments/b-1.parquet was announced and never became part of the table",
        "segments/c.parquet.tmp-01234567 is what a killed writer left",
    ]
    assert tree(table) == before
    assert len(look(table).repaired) == 2
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


def test_what_a_newer_catalog_knows_is_there_when_it_is_restored(used: Table, tmp_path: Path) -> None:
    older, newer = tmp_path / "older.db", tmp_path / "newer.db"
    in_flight = used.lease(1, step=9)  # the older copy has the lease, and not yet its segment
    swap_catalog(used, older)
    used.append("after", in_flight)
    used.shape(0.5)
    answers = used.store.write_answers("held_out-v000003", [])
    used.catalog.versions.record_evaluation(Evaluation(HELD_OUT, 3, {}, answers.uri, answers.sha256))
    before = tree(used)
    swap_catalog(used, newer, restore=older)
    report = look(used)
    assert report.repaired == []
    assert [line.partition("/")[0] for line in report.left] == ["segments", "overlays", "evaluations"]
    newer_one = "is not in the catalog; if that was restored from a copy, restore a newer one, else move the file elsewhere"
    assert all(line.endswith(newer_one) for line in report.left)
    assert tree(used) == before
    swap_catalog(used, older, restore=newer)
    assert look(used).left == []


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


def test_leases_of_the_dead_expire(table: Table) -> None:
    table.catalog.leases.issue(1, 2, "explorer-9", lambda position: f"task-{position}", None, lease_s=0.0)
    time.sleep(0.002)
    found = "2 leases are of explorers that are not heard of any more"
    assert look(table, repair=False).left == [f"{found}; {MENDS}"]
    assert look(table).repaired == [f"{found}; expired"]
    assert table.catalog.leases.fates() == {"expired": 2}


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
    path = table.run_dir.root / "segments" / "x.parquet.tmp-01234567"
    path.write_bytes(b"x")
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    assert fsck(table.open, grace_s=7200.0).repaired == []
    assert len(fsck(table.open, grace_s=1800.0).repaired) == 1
    assert not path.exists()
