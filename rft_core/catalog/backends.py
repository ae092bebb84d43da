"""What SQLite and PostgreSQL do in different ways: connecting and locking."""

import re
import sqlite3
import time
from typing import Any, Protocol
from zlib import crc32

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.schema import CreateSchema

from rft_core.errors import RunError

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another one's transaction, which takes milliseconds."""
CONNECT_TIMEOUT_S = 10
LOCK_POLL_S = 0.001
"""How often a writer looks whether the lock of SQLite is free."""
CACHE_KB = 64_000
"""Pages that a connection to SQLite keeps: the indexes of a million rows fit."""

_ENDS_A_WORD = re.compile(r"[\s\\]")
"""What needs a backslash before it within a word of PostgreSQL's command line."""


class Backend(Protocol):
    """One kind of database."""

    engine: Engine

    def place(self) -> str:
        """Where the catalog is, for people; without any secret."""

    def begin(self, connection: Connection, read_only: bool) -> None:
        """Called at the start of a transaction: readers get one consistent view, writers wait for each other."""

    def prepare(self, connection: Connection) -> None:
        """Make the place where the tables go, within the transaction that makes them."""


class Sqlite:
    """A file in WAL mode. Writers take the write lock when their transaction begins, so they never have to give up half-way."""

    def __init__(self, file: str) -> None:
        self.engine = create_engine(URL.create("sqlite", database=file), connect_args={"timeout": BUSY_TIMEOUT_S})
        event.listen(self.engine, "connect", _configure_sqlite)

    def place(self) -> str:
        return str(self.engine.url.database)

    def begin(self, connection: Connection, read_only: bool) -> None:
        if read_only:
            connection.exec_driver_sql("begin")
        else:
            self._begin_immediately(connection)

    def _begin_immediately(self, connection: Connection) -> None:
        """Take the write lock as soon as it is free: SQLite's own wait sleeps up to 0.1 s at a time, while transactions take a few ms."""
        driver: Any = connection.connection.driver_connection
        give_up = time.monotonic() + BUSY_TIMEOUT_S
        driver.execute("pragma busy_timeout = 0")
        try:
            while time.monotonic() < give_up:
                try:
                    driver.execute("begin immediate")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_SNAPSHOT, sqlite3.SQLITE_BUSY_RECOVERY):
                        break
                    time.sleep(LOCK_POLL_S)
                else:
                    return
            connection.exec_driver_sql("begin immediate")  # for the error, as SQLAlchemy raises it
        finally:
            driver.execute(f"pragma busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")

    def prepare(self, connection: Connection) -> None:
        pass


class Postgres:
    """A schema of its own in a PostgreSQL database, so that many runs share one.

    Writers of a run take one advisory lock when their transaction begins: as with SQLite they commit one after the other, and
    numbers that they take are in commit order. Each holds it for milliseconds; the server ends one that stalls.
    """

    def __init__(self, url: URL, namespace: str) -> None:
        self._namespace = namespace
        self._lock = crc32(namespace.encode())
        try:
            self.engine = create_engine(
                url.set(drivername="postgresql+psycopg"),
                connect_args={
                    "options": " ".join([*url.normalized_query.get("options", ()), *_options(namespace)]),
                    "connect_timeout": url.query.get("connect_timeout", CONNECT_TIMEOUT_S),
                },
                # Not what the server's default may be: a writer that has waited must see what it waited for.
                isolation_level="READ COMMITTED",
                pool_pre_ping=True,
            )
        except ImportError:  # of psycopg, or of the libpq that it needs
            raise RunError(
                "the catalog is in PostgreSQL, and its driver psycopg is not installed", "pip install 'tidemill[postgres]'"
            ) from None

    def place(self) -> str:
        url = self.engine.url
        return f"{url.database} of PostgreSQL at {url.host or 'its socket'}{f':{url.port}' if url.port else ''}"

    def begin(self, connection: Connection, read_only: bool) -> None:
        if read_only:
            connection.exec_driver_sql("set transaction isolation level repeatable read, read only")
        else:
            connection.exec_driver_sql("select pg_advisory_xact_lock(7411, %s::bigint::bit(32)::int)", (self._lock,))

    def prepare(self, connection: Connection) -> None:
        if not inspect(connection).has_schema(self._namespace):  # who may not make one can be given one
            connection.execute(CreateSchema(self._namespace))


def open_backend(url: str, namespace: str) -> Backend:
    """The database that a URL names.

    Args:
        url: `sqlite:///FILE` or `postgresql://USER:PASSWORD@HOST/DATABASE`.
        namespace: Schema of the run's tables in PostgreSQL.

    Raises:
        RunError: It is no URL, of another kind, or its driver is missing.
    """
    if url.startswith("sqlite:///"):
        return Sqlite(url.removeprefix("sqlite:///"))  # not parsed: a folder's name may hold what means something in URLs
    right = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE is right"
    if url.count("@") > 1:  # the rest of the password would be taken for the host, and shown
        raise RunError("the catalog's address has more than one @", f"{right}; write an @ in a name or password as %40")
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise RunError("the catalog's address is not a URL", right) from None
    except ValueError:
        raise RunError("the catalog's address has a port that is not a number", right) from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise RunError(f"the catalog's address has the scheme {parsed.drivername}", f"{right}, or none for SQLite in the run's folder")
    return Postgres(parsed, namespace)


def _options(namespace: str) -> list[str]:
    """Settings of each session, as words of PostgreSQL's command line."""
    quoted = namespace.replace('"', '""')
    settings = {
        "search_path": f'"{quoted}"',
        "lock_timeout": f"{BUSY_TIMEOUT_S:.0f}s",
        "idle_in_transaction_session_timeout": f"{2 * BUSY_TIMEOUT_S:.0f}s",
    }
    return [_ENDS_A_WORD.sub(r"\\\g<0>", f"-c{name}={value}") for name, value in settings.items()]


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: it would take the write lock too late, and fail with "locked".
    connection.isolation_level = None
    _switch_to_wal(connection)
    connection.execute("pragma synchronous = full")
    connection.execute("pragma foreign_keys = on")
    connection.execute(f"pragma cache_size = -{CACHE_KB}")


def _switch_to_wal(connection: Any) -> None:
    """The first one to open a new file switches it, which needs the file for itself: SQLite's own timeout does not cover that."""
    give_up = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
        else:
            return
