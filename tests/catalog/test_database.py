"""Transactions: several processes at once, a newer schema, a damaged file, and no space."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rft_core.catalog import RELATIONS, Catalog
from rft_core.catalog.schema import VERSION
from rft_core.errors import RunError
from tests.catalog.ledger import lease

ROOT = Path(__file__).parents[2]

WRITER = """
import sys
from rft_core.catalog import Catalog
print("ready", flush=True)
sys.stdin.readline()
catalog = Catalog(f"sqlite:///{sys.argv[1]}")
for _ in range(60):
    catalog.leases.issue(1, 1, sys.argv[2], lambda position: f"task-{position}", None)
    catalog.versions.acknowledge(sys.argv[2], 1)
    catalog.leases.fates()
"""


def test_processes_that_write_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """Two writers on one catalog, which both of them make: no `database is locked`, and no position given out twice."""
    file = tmp_path / "catalog.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(file), name], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
    catalog = Catalog(f"sqlite:///{file}")
    columns, rows = catalog.relation("leases")
    assert sorted(row[list(columns).index("position")] for row in rows) == list(range(120))
    assert catalog.versions.in_use(within_s=60) == {1}
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


def test_a_transaction_that_fails_leaves_nothing(catalog: Catalog) -> None:
    def fail_halfway() -> None:
        with catalog._database.write() as connection:
            connection.exec_driver_sql("insert into cursors (name, position) values ('tasks', 7)")
            raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        fail_halfway()
    assert catalog.relation("cursors")[1] == []


def test_a_newer_catalog_is_refused_in_one_line_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    Catalog(f"sqlite:///{file}").close()
    with sqlite3.connect(file) as connection:
        connection.execute("update meta set value = ? where key = 'schema_version'", (VERSION + 1,))
    with pytest.raises(RunError) as raised:
        Catalog(f"sqlite:///{file}")
    assert str(raised.value) == f"the catalog {file} has schema {VERSION + 1}, this code has {VERSION}; upgrade tidemill"
    with sqlite3.connect(file) as connection:
        assert connection.execute("select value from meta where key = 'schema_version'").fetchone() == (VERSION + 1,)


def test_a_file_that_is_no_catalog_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    file.write_bytes(b"something else" * 1000)
    with pytest.raises(RunError) as raised:
        Catalog(f"sqlite:///{file}")
    assert str(raised.value).startswith(f"the catalog {file} can't be used (file is not a database)")
    assert "\n" not in str(raised.value)


def test_every_relation_answers_with_its_columns(catalog: Catalog) -> None:
    lease(catalog, 1, 2)
    for name, columns in RELATIONS.items():
        found, rows = catalog.relation(name)
        assert found == columns
        assert all(len(row) == len(columns) for row in rows)
    with catalog._database.read() as connection:
        described = connection.exec_driver_sql("pragma table_info(fates)").all()
    assert [row[1] for row in described] == list(RELATIONS["fates"])
