"""Connections and transactions of the catalog."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, bindparam, event, inspect, select, update
from sqlalchemy.exc import DatabaseError, InternalError, OperationalError

from rft_core.catalog import schema
from rft_core.catalog.backends import open_backend
from rft_core.catalog.clock import start_transaction
from rft_core.catalog.migrations import MIGRATIONS, migrate
from rft_core.errors import RunError

_NOT_PERMITTED = "42501"
"""PostgreSQL's code for what its user may not do."""
_COUNTER = schema.meta.c
_NEXT_SEQUENCE = (
    update(schema.meta).where(_COUNTER.key == "sequence").values(value=_COUNTER.value + bindparam("count")).returning(_COUNTER.value)
)


class Database:
    """The catalog's database, made or brought to the present schema when it is opened.

    Args:
        url: `sqlite:///FILE`, or `postgresql://...`.
        namespace: Schema of the run's tables in PostgreSQL, where many runs share a database.

    Raises:
        RunError: It can't be used, or it is newer than this code.
    """

    def __init__(self, url: str, namespace: str = "tidemill") -> None:
        self._backend = open_backend(url, namespace)
        self._engine = self._backend.engine
        event.listen(self._engine, "begin", self._begin)
        try:
            self._create()
        except BaseException:  # whatever it was, the connection is closed; it is raised again
            self.close()
            raise

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that holds the write lock from its start; committed when the block ends without error.

        Raises:
            RunError: The database is damaged, can't be written or reached, or was locked by somebody else for too long.
        """
        with self._explained(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view of the catalog."""
        with self._explained(), self._engine.connect().execution_options(read_only=True) as connection:
            yield connection

    @property
    def place(self) -> str:
        """Where the catalog is, for people; without any secret."""
        return self._backend.place()

    def close(self) -> None:
        self._engine.dispose()

    def _begin(self, connection: Connection) -> None:
        start_transaction(connection)
        self._backend.begin(connection, bool(connection.get_execution_options().get("read_only", False)))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """One line for what is wrong with the database; mistakes of this code stay what they are."""
        try:
            yield
        except DatabaseError as error:
            if not _is_of_the_database(error):
                raise
            reason = " ".join(str(error.orig).split())
            raise RunError(
                f"the catalog {self.place} can't be used ({reason})",
                "its server must answer, its disk have room, and it must be whole and writable; then run the same command again",
            ) from None

    def _create(self) -> None:
        """Make the tables where there are none, or bring those of an older version to the present schema."""
        with self.write() as connection:
            self._backend.prepare(connection)
            tables = inspect(connection).get_table_names()
            if not tables:
                schema.create(connection)
                return
            if "meta" not in tables:
                raise RunError(f"{self.place} is no catalog: it has the tables {', '.join(sorted(tables)[:5])}", "name another place")
            found = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.key == "schema_version"))
            if isinstance(found, int) and found > schema.VERSION:
                raise RunError(f"the catalog {self.place} has schema {found}, this code knows up to {schema.VERSION}", "upgrade tidemill")
            if found != schema.VERSION and found not in MIGRATIONS:
                raise RunError(
                    f"the catalog {self.place} has schema {found}, from which there is no way to {schema.VERSION}", "make a new run"
                )
            migrate(connection, found)


def next_sequence(connection: Connection, count: int = 1) -> int:
    """Take the next sequence numbers; the counter row stays locked until the transaction ends. Returns the last of them."""
    return int(connection.execute(_NEXT_SEQUENCE, {"count": count}).scalar_one())


def current_sequence(connection: Connection) -> int:
    """The last sequence number that was given out: it names the state of the table."""
    return int(connection.execute(select(_COUNTER.value).where(_COUNTER.key == "sequence")).scalar_one())


def _is_of_the_database(error: DatabaseError) -> bool:
    """Whether an error is about the database or the way to it, and not a mistake in a query."""
    connecting = error.statement is None
    return type(error) in (DatabaseError, OperationalError, InternalError) or connecting or _sqlstate(error) == _NOT_PERMITTED


def _sqlstate(error: DatabaseError) -> Any:
    return getattr(error.orig, "sqlstate", None)
