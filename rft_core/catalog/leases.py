"""Leases: which task was given to whom, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select, text, update

from rft_core.catalog import schema
from rft_core.catalog.database import Database, now
from rft_core.errors import RunError
from rft_core.failpoints import failpoint
from rft_core.types import digest

CURSOR = "tasks"
REISSUED = ("expired", "failed")
"""Fates of leases whose slots are issued again: the holder died, or too many attempts of its rollout failed."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One issue of one task to one explorer."""

    lease_id: str
    step: int
    slot: int
    position: int
    task_id: str
    epoch: int


class Leases:
    """The ledger of leases.

    In sync mode only the process that holds the run issues leases, so whatever is open when it starts is dead.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def issue(self, step: int, fresh: int, explorer: str, task_id_at: Callable[[int], str], end: int | None) -> list[Lease]:
        """Lease tasks for a step: everything that must be tried again, in its old slots, and what the cursor names next.

        Args:
            step: The step that the attempts are for.
            fresh: How many tasks are wanted besides those.
            explorer: Who will run them.
            task_id_at: The id of the task at a position of the task set's order.
            end: The first position that may not be leased; null if there is none.

        Returns:
            The new leases in slot order; fewer than wanted if the task set is exhausted.
        """
        failpoint("lease.before")
        with self._database.write() as connection:
            issued = self._reissued(connection, step)
            position = connection.scalar(select(schema.cursors.c.position).where(schema.cursors.c.name == CURSOR)) or 0
            fresh = fresh if end is None else max(0, min(fresh, end - position))
            slot = self._next_slot(connection, step)
            for offset in range(fresh):
                task_id = task_id_at(position + offset)
                lease_id = digest("lease", task_id, step, slot + offset, 0)
                issued.append(Lease(lease_id, step, slot + offset, position + offset, task_id, 0))
            self._insert(connection, issued, explorer)
            move = "insert into cursors (name, position) values (:name, :to) on conflict (name) do update set position = excluded.position"
            connection.execute(text(move), {"name": CURSOR, "to": position + fresh})
        failpoint("lease.after")
        return sorted(issued, key=lambda lease: lease.slot)

    def open(self, step: int) -> list[Lease]:
        """The leases of a step that are in flight, in slot order."""
        table = schema.leases.c
        with self._database.read() as connection:
            return _leases(connection, (table.step == step) & table.fate.is_(None))

    def of_step(self, step: int) -> dict[int, str]:
        """The fate of each slot of a step: that of its newest lease."""
        query = text("select slot, fate from fates where step = :step order by slot, epoch")
        with self._database.read() as connection:
            return {row.slot: row.fate for row in connection.execute(query, {"step": step})}

    def num_to_reissue(self, step: int) -> int:
        """How many slots of a step must be tried again."""
        with self._database.read() as connection:
            return len(self._reissued(connection, step))

    def bind(self, fingerprint: str) -> None:
        """Tie the run's cursor to its task set, the first time.

        Raises:
            RunError: The cursor belongs to another task set: its positions would name other tasks.
        """
        table = schema.cursors
        with self._database.write() as connection:
            known = connection.execute(select(table.c.fingerprint).where(table.c.name == CURSOR)).first()
            if known is None:
                connection.execute(insert(table).values(name=CURSOR, position=0, fingerprint=fingerprint))
            elif known.fingerprint != fingerprint:
                raise RunError(
                    "the task set is another one than this run began with", "restore its file, or set another `name` for a new run"
                )

    def exhausted_at(self, end: int | None) -> int | None:
        """The step that leased the last task before `end`; null while there are more, or no end."""
        with self._database.read() as connection:
            position = connection.scalar(select(schema.cursors.c.position).where(schema.cursors.c.name == CURSOR)) or 0
            if end is None or position < end:
                return None
            last: int | None = connection.scalar(select(func.max(schema.leases.c.step)))
            return last

    def expire_open(self, reason: str) -> int:
        """Close every lease that is in flight as expired: its holder is dead. Returns how many there were."""
        return self._close_open("expired", reason)

    def end_run(self) -> int:
        """Close what the run's end leaves over, as unused: open leases and groups that no step took."""
        table = schema.groups
        with self._database.write() as connection:
            connection.execute(
                update(table).where(table.c.status.in_(("ready", "pending"))).values(status="unused", reason="the run ended")
            )
        return self._close_open("unused", "the run ended")

    def fates(self) -> dict[str, int]:
        """How many leases have each fate; the values add up to the number issued."""
        with self._database.read() as connection:
            return {
                row.fate: row.leases
                for row in connection.execute(text("select fate, count(*) as leases from fates group by fate order by fate"))
            }

    def num_issued(self) -> int:
        with self._database.read() as connection:
            return connection.scalar(select(func.count()).select_from(schema.leases)) or 0

    def _close_open(self, fate: str, reason: str) -> int:
        table = schema.leases
        with self._database.write() as connection:
            closing = update(table).where(table.c.fate.is_(None)).values(fate=fate, reason=reason, closed_at=now(connection))
            return connection.execute(closing).rowcount

    def _reissued(self, connection: Connection, step: int) -> list[Lease]:
        """New issues for the slots of a step whose newest lease expired, or belongs to a rollout that was rejected."""
        table = schema.leases.c
        newest = select(table.slot, func.max(table.epoch).label("epoch")).where(table.step == step).group_by(table.slot).subquery()
        joined = select(schema.leases).join(newest, (table.slot == newest.c.slot) & (table.epoch == newest.c.epoch))
        again = (table.step == step) & table.fate.in_(REISSUED)
        rows = connection.execute(joined.where(again).order_by(table.slot)).mappings()
        return [
            Lease(
                lease_id=digest("lease", row["task_id"], step, row["slot"], row["epoch"] + 1),
                step=step,
                slot=row["slot"],
                position=row["position"],
                task_id=row["task_id"],
                epoch=row["epoch"] + 1,
            )
            for row in rows
        ]

    def _next_slot(self, connection: Connection, step: int) -> int:
        last = connection.scalar(select(func.max(schema.leases.c.slot)).where(schema.leases.c.step == step))
        return 0 if last is None else last + 1

    def _insert(self, connection: Connection, issued: list[Lease], explorer: str) -> None:
        if issued:
            shared = {"explorer": explorer, "issued_at": now(connection), "reason": ""}
            connection.execute(
                insert(schema.leases), [{name: getattr(lease, name) for name in Lease.__slots__} | shared for lease in issued]
            )


def _leases(connection: Connection, condition: object) -> list[Lease]:
    columns = [schema.leases.c[name] for name in Lease.__slots__]
    return [Lease(*row) for row in connection.execute(select(*columns).where(condition).order_by(schema.leases.c.slot))]  # type: ignore[arg-type]
