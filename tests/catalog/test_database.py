"""Transactions: several processes at once, a newer schema, a damaged file, and no space."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, OperationalError

from rft_core.catalog import RELATIONS, Catalog, StoredFile, schema
from rft_core.catalog.schema import VERSION
from rft_core.errors import RunError
from tests.catalog.conftest import Place
from tests.catalog.ledger import lease, rows

ROOT = Path(__file__).parents[2]

WRITER = """
import sys
from rft_core.catalog import Catalog
print("ready", flush=True)
sys.stdin.readline()
catalog = Catalog(sys.argv[1])
for _ in range(40):
    catalog.leases.issue(1, 1, sys.argv[2], lambda position: f"task-{position}", None)
    catalog.versions.acknowledge(sys.argv[2], 1)
    catalog.leases.fates()
"""


def test_processes_that_write_at_once_wait_for_each_other(place: Place) -> None:
    """Two writers on one catalog, which both of them may make: no `database is locked`, and no position given out twice."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, place.url, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    ends = [writer.communicate() for writer in writers]
    assert [(writer.returncode, end[1]) for writer, end in zip(writers, ends, strict=True)] == [(0, b"")] * 2
    catalog = place.open()
    assert [row["position"] for row in rows(catalog, "leases", "position")] == list(range(80))
    assert catalog.versions.in_use(within_s=60) == {1}
    catalog.close()


def test_processes_that_make_a_catalog_at_once_make_one(postgres_url: str, tmp_path: Path) -> None:
    for url in (postgres_url, f"sqlite:///{tmp_path / 'catalog.db'}"):
        made: list[Catalog] = []
        makers = [threading.Thread(target=lambda url=url, made=made: made.append(Catalog(url))) for _ in range(4)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        assert [catalog.leases.num_issued() for catalog in made] == [0] * 4
        for catalog in made:
            catalog.close()


def test_a_reader_sees_one_state_while_others_write(catalog: Catalog) -> None:
    lease(catalog, 1, 3)
    with catalog._database.read() as connection:
        before = connection.exec_driver_sql("select count(*) from leases").scalar()
        writer = threading.Thread(target=lease, args=(catalog, 2, 2))
        writer.start()
        writer.join()
        assert connection.exec_driver_sql("select count(*) from leases").scalar() == before == 3
    assert catalog.leases.num_issued() == 5


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read", "read uncommitted"])
def test_a_writer_sees_what_the_one_before_it_committed(postgres_place: Place, isolation: str) -> None:
    """Whatever isolation a server gives when nobody asks."""
    first = postgres_place.open()
    second = Catalog(f"{postgres_place.url}%20-cdefault_transaction_isolation%3D{isolation.replace(' ', '%5C%20')}")
    with second._database._engine.connect() as connection:
        assert connection.exec_driver_sql("show default_transaction_isolation").scalar() == isolation
    started, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with first._database.write() as connection:
            connection.execute(update(schema.meta).where(schema.meta.c.key == "sequence").values(value=41))
            started.set()
            go_on.wait(30)

    writer = threading.Thread(target=hold)
    writer.start()
    assert started.wait(30)
    threading.Timer(0.1, go_on.set).start()
    assert second.history.pin("now") == 41
    writer.join()
    first.close()
    second.close()


def test_a_transaction_that_fails_leaves_nothing(catalog: Catalog) -> None:
    def fail_halfway() -> None:
        with catalog._database.write() as connection:
            connection.exec_driver_sql("insert into cursors (name, position) values ('tasks', 7)")
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail_halfway()
    assert rows(catalog, "cursors") == []


def test_a_mistake_of_this_code_is_not_taken_for_one_of_the_database(catalog: Catalog) -> None:
    with pytest.raises(IntegrityError), catalog._database.write() as connection:
        connection.exec_driver_sql("insert into cursors (name) values ('tasks')")


def test_readers_change_nothing_in_postgres(postgres_place: Place) -> None:
    catalog = postgres_place.open()
    with pytest.raises(RunError, match="read-only transaction"), catalog._database.read() as connection:
        connection.exec_driver_sql("delete from meta")
    catalog.close()


def test_numbers_of_bytes_may_be_large(catalog: Catalog) -> None:
    large = StoredFile("segments/a.parquet", 1, 5_000_000_000, "")
    catalog.segments.intend("a", large.uri, "explorer")
    catalog.segments.commit("a", large, "explorer", 1, 1, [])
    assert catalog.segments.find("a") == large
    assert catalog.segments.totals()["bytes"] == 5_000_000_000


def test_a_newer_catalog_is_refused_in_one_line_and_left_as_it_is(catalog: Catalog, place: Place) -> None:
    set_schema(catalog, VERSION + 1)
    with pytest.raises(RunError) as raised:
        place.open()
    assert str(raised.value) == f"the catalog {catalog.place} has schema {VERSION + 1}, this code knows up to {VERSION}; upgrade tidemill"
    assert {"key": "schema_version", "value": VERSION + 1} in rows(catalog, "meta")


@pytest.mark.parametrize("found", [0, -1, None])
def test_a_catalog_that_no_version_made_is_refused_in_one_line(catalog: Catalog, place: Place, found: int | None) -> None:
    set_schema(catalog, found)
    with pytest.raises(RunError) as raised:
        place.open()
    assert str(raised.value) == f"the catalog {catalog.place} has schema {found}, from which there is no way to {VERSION}; make a new run"


def test_a_database_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mlflow.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table experiments (id integer)")
    with pytest.raises(RunError) as raised:
        Catalog(f"sqlite:///{file}")
    assert str(raised.value) == f"{file} is no catalog: it has the tables experiments; name another place"
    with sqlite3.connect(file) as connection:
        assert connection.execute("select name from sqlite_master").fetchall() == [("experiments",)]


def test_a_meta_table_of_something_else_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    with sqlite3.connect(file) as connection:
        connection.executescript("create table meta (key text, value text); insert into meta values ('schema_version', 'two')")
    with pytest.raises(RunError, match="has schema two, from which there is no way"):
        Catalog(f"sqlite:///{file}")


def test_a_file_that_is_no_catalog_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    file.write_bytes(b"something else" * 1000)
    with pytest.raises(RunError) as raised:
        Catalog(f"sqlite:///{file}")
    assert str(raised.value).startswith(f"the catalog {file} can't be used (file is not a database)")
    assert "\n" not in str(raised.value)


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    first = lease(catalog, 1, 2)
    with catalog._database.read() as connection:
        connection.exec_driver_sql("pragma max_page_count = 1")  # SQLite takes it for a full disk; this pool has one connection yet
    with pytest.raises(RunError, match=r"can't be used \(database or disk is full\); .* its disk have room"):
        catalog.leases.issue(2, 3000, "explorer", lambda position: "a task with a long name" * 20, None)
    assert catalog.leases.num_issued() == 2
    assert catalog.leases.open(1) == first
    catalog.close()


def test_a_catalog_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"can't be used \(unable to open database file\)"):
        Catalog(f"sqlite:///{tmp_path / 'nowhere' / 'catalog.db'}")


def test_a_lock_that_somebody_keeps_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_core.catalog.backends.BUSY_TIMEOUT_S", 1.0)
    first, second = place.open(), place.open()
    with first._database.write(), pytest.raises(RunError, match="can't be used .*lock"):
        second.history.pin("now")
    second.history.pin("now")
    first.close()
    second.close()


def test_a_connection_that_was_cut_is_made_again(postgres_place: Place) -> None:
    catalog = postgres_place.open()
    lease(catalog, 1, 1)
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with catalog._database.read() as connection:
        connection.exec_driver_sql("select 1")
        with psycopg.connect(postgres_place.url, autocommit=True) as other:
            other.execute(cut)
        with pytest.raises(OperationalError, match="terminating connection"):
            connection.exec_driver_sql("select 1")
    assert catalog.leases.num_issued() == 1
    catalog.close()


def test_every_relation_answers_with_its_columns(catalog: Catalog) -> None:
    lease(catalog, 1, 2)
    for name, columns in RELATIONS.items():
        found, held = catalog.relation(name)
        assert found == columns
        assert all(len(row) == len(columns) for row in held)
        with catalog._database.read() as connection:
            assert sorted(connection.exec_driver_sql(f"select * from {name}").keys()) == sorted(columns)


def set_schema(catalog: Catalog, version: int | None) -> None:
    """Write down another version of the schema, or none."""
    table = schema.meta
    mine = table.c.key == "schema_version"
    with catalog._database.write() as connection:
        connection.execute(table.delete().where(mine) if version is None else update(table).where(mine).values(value=version))
