"""Connections and transactions of the catalog."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, event, insert, inspect, select, text, update
from sqlalchemy.exc import DatabaseError, OperationalError

from rft_core.catalog import schema
from rft_core.errors import LostClaimError, RunError

BUSY_TIMEOUT_S = 30.0


class Database:
    """The catalog's database: SQLite in WAL mode.

    Args:
        url: A SQLAlchemy URL, as in `sqlite:///runs/quickstart/catalog.db`.

    Raises:
        RunError: The catalog is newer than this code, or its file can't be used.
    """

    def __init__(self, url: str) -> None:
        self._engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        event.listen(self._engine, "connect", _configure_sqlite)
        event.listen(self._engine, "begin", _begin_immediately)
        self._create()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that holds the write lock from its start; committed when the block ends without error.

        Raises:
            RunError: The file is damaged, can't be written, or was locked by somebody else for too long.
        """
        with self._explained(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the catalog."""
        with self._explained(), self._engine.connect().execution_options(read_only=True) as connection:
            yield connection

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """One line for what is wrong with the file; mistakes of this code stay what they are."""
        try:
            yield
        except DatabaseError as error:
            if type(error) not in (DatabaseError, OperationalError):
                raise
            raise RunError(
                f"the catalog {self._engine.url.database} can't be used ({error.orig})",
                "its disk must have room, and the file must be whole and writable; then run the same command again",
            ) from None

    def _create(self) -> None:
        with self.write() as connection:
            if not inspect(connection).has_table("meta"):
                schema.metadata.create_all(connection)
                connection.execute(text(schema.FATES_VIEW))
                connection.execute(
                    insert(schema.meta), [{"key": "schema_version", "value": schema.VERSION}, {"key": "sequence", "value": 0}]
                )
            found = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.key == "schema_version"))
        if found != schema.VERSION:
            raise RunError(
                f"the catalog {self._engine.url.database} has schema {found}, this code has {schema.VERSION}", "upgrade tidemill"
            )


def next_sequence(connection: Connection) -> int:
    """Take the next sequence number; the counter row stays locked until the transaction ends."""
    counter = schema.meta.c
    statement = update(schema.meta).where(counter.key == "sequence").values(value=counter.value + 1).returning(counter.value)
    return int(connection.execute(statement).scalar_one())


def require_generation(connection: Connection, generation: int) -> None:
    """Refuse to commit for a trainer that was replaced.

    Raises:
        LostClaimError: A newer trainer took over this run.
    """
    newest = connection.execute(select(schema.trainers).order_by(schema.trainers.c.generation.desc()).limit(1)).mappings().one()
    if newest["generation"] != generation:
        raise LostClaimError(f"{newest['process']} took over this run as its trainer", "let that one go on, or stop it first")


def now(connection: Connection) -> float:
    """The database's clock, in seconds since the epoch."""
    return float(connection.execute(text("select (julianday('now') - 2440587.5) * 86400.0")).scalar_one())


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: it would take the write lock too late, and fail with "locked".
    connection.isolation_level = None
    _switch_to_wal(connection)
    connection.execute("pragma synchronous = full")
    connection.execute("pragma foreign_keys = on")


def _switch_to_wal(connection: Any) -> None:
    """The first one to open a new file switches it, which needs the file for itself: SQLite's own timeout does not cover that."""
    give_up = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)
        else:
            return


def _begin_immediately(connection: Connection) -> None:
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("begin" if read_only else "begin immediate")
