"""Who trains a run: one process at a time, on a lease that it keeps alive."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, insert, select, update

from rft_core.catalog import schema
from rft_core.catalog.clock import end_of_lease, is_over, now
from rft_core.catalog.database import Database
from rft_core.errors import LostClaimError, RunError
from rft_core.processes import Process, is_gone

TRAINER_LEASE_S = 60.0
"""How long a trainer that is not heard of keeps its run, on the database's clock."""


class Trainers:
    """The trainers that a run has had. Each has a generation, and only the newest one can commit."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take_over(self, process: Process, lease_s: float = TRAINER_LEASE_S) -> int:
        """Become the run's trainer; whoever was it can't commit any more. Returns the new generation.

        Raises:
            RunError: Another trainer is at work: it is not known to be dead, and its lease is not over.
        """
        with self._database.write() as connection:
            at = now(connection)
            newest = _newest(connection, at)
            if newest is not None and _may_be_at_work(newest):
                raise RunError(
                    f"this run is being trained by {newest.process}, for {at - newest.started_at:.0f} s, "
                    f"last heard of {at - newest.seen_at:.0f} s ago",
                    f"stop it, or wait: if it is dead its lease is over in {newest.leased_until - at:.0f} s",
                )
            generation = 1 if newest is None else newest.generation + 1
            values = {"process": process.name, "identity": process.identity, "started_at": at, "seen_at": at}
            until = end_of_lease(at, lease_s)
            connection.execute(insert(schema.trainers).values(generation=generation, leased_until=until, **values))
        return generation

    def renew(self, generation: int, lease_s: float = TRAINER_LEASE_S) -> None:
        """A heartbeat: the trainer keeps its run this much longer.

        Raises:
            LostClaimError: Another trainer took over.
        """
        with self._database.write() as connection:
            require_generation(connection, generation)
            at = now(connection)
            values = {"seen_at": at, "leased_until": end_of_lease(at, lease_s)}
            connection.execute(update(schema.trainers).where(_of(generation)).values(values))

    def check(self, generation: int) -> None:
        """Refuse to go on for a trainer that was replaced, before it writes what the catalog does not fence.

        Raises:
            LostClaimError: Another trainer took over.
        """
        with self._database.read() as connection:
            require_generation(connection, generation)

    def release(self, generation: int) -> None:
        """The trainer ends; the next one need not wait."""
        with self._database.write() as connection:
            connection.execute(update(schema.trainers).where(_of(generation)).values(leased_until=None))

    def holder(self) -> tuple[str, float] | None:
        """The trainer that holds the run, and how many seconds ago it was heard of; null if nobody does."""
        with self._database.read() as connection:
            at = now(connection)
            newest = _newest(connection, at)
        return (newest.process, at - newest.seen_at) if newest is not None and _may_be_at_work(newest) else None


def require_generation(connection: Connection, generation: int) -> None:
    """Refuse to commit for a trainer that was replaced.

    Raises:
        LostClaimError: A newer trainer took over this run.
    """
    newest = _newest(connection, now(connection))
    if newest is None or newest.generation != generation:
        name = "another process" if newest is None else newest.process
        raise LostClaimError(f"{name} took over this run as its trainer", "let that one go on, or stop it first")


def _newest(connection: Connection, at: float) -> Row[Any] | None:
    """The row of the newest trainer, with whether its lease `is_over`."""
    table = schema.trainers
    query = select(table, is_over(table.c.leased_until, at).label("is_over")).order_by(table.c.generation.desc()).limit(1)
    return connection.execute(query).first()


def _may_be_at_work(newest: Row[Any]) -> bool:
    return not newest.is_over and not is_gone(newest.identity)


def _of(generation: int) -> ColumnElement[bool]:
    return schema.trainers.c.generation == generation
