"""Leases: which task was given to whom, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, func, insert, select, text, update

from rft_core.catalog import schema
from rft_core.catalog.admission import Admission
from rft_core.catalog.clock import end_of_lease, is_over, now
from rft_core.catalog.database import Database
from rft_core.catalog.trainers import require_generation
from rft_core.errors import RunError
from rft_core.failpoints import failpoint
from rft_core.types import digest

CURSOR = "tasks"
LEASE_S = 60.0
"""How long a lease lasts without a heartbeat, on the database's clock."""
REISSUED = ("expired", "failed")
"""Fates of leases whose slots are issued again: the holder died, or too many attempts of its rollout failed."""

_INSERT = insert(schema.leases)
_POSITION = select(schema.cursors.c.position).where(schema.cursors.c.name == CURSOR)
_IN_FLIGHT = text("select count(*) from leases where fate is null")
_MOVE = text("insert into cursors (name, position) values (:name, :to) on conflict (name) do update set position = excluded.position")
_LAST_SLOT = select(func.max(schema.leases.c.slot)).where(schema.leases.c.step == bindparam("of_step"))
_NEWEST = (
    select(schema.leases.c.slot, func.max(schema.leases.c.epoch).label("epoch"))
    .where(schema.leases.c.step == bindparam("of_step"))
    .group_by(schema.leases.c.slot)
    .subquery()
)
_TO_TRY_AGAIN = text(
    "select position, step, slot, task_id, epoch from leases l where fate in ('expired', 'failed') and not exists"
    " (select 1 from leases later where later.step = l.step and later.slot = l.slot and later.epoch > l.epoch)"
    " order by step, slot limit :most"
)
_TO_REISSUE = (
    select(schema.leases)
    .join(_NEWEST, (schema.leases.c.slot == _NEWEST.c.slot) & (schema.leases.c.epoch == _NEWEST.c.epoch))
    .where(schema.leases.c.step == bindparam("of_step"), schema.leases.c.fate.in_(REISSUED))
    .order_by(schema.leases.c.slot)
)


@dataclass(frozen=True, slots=True)
class Lease:
    """One issue of one task to one explorer."""

    lease_id: str
    step: int
    slot: int
    position: int
    task_id: str
    epoch: int
    policy_version: int | None = None
    """That it is to be sampled with, where a trainer goes on meanwhile."""


class Leases:
    """The ledger of leases: any number of explorers lease tasks of one task set, no two of them the same lease."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def issue(
        self,
        step: int,
        fresh: int,
        explorer: str,
        task_id_at: Callable[[int], str],
        end: int | None,
        lease_s: float = LEASE_S,
        most_again: int | None = None,
        generation: int | None = None,
    ) -> list[Lease]:
        """Lease tasks for a step: what must be tried again, in its old slots, and what the cursor names next.

        Args:
            step: The step that the attempts are for.
            fresh: How many tasks are wanted besides those.
            explorer: Who will run them.
            task_id_at: The id of the task at a position of the task set's order.
            end: The first position that may not be leased; null if there is none.
            lease_s: Seconds until the leases expire, unless they are renewed.
            most_again: Most tasks that are taken to try again; all if left out.
            generation: Of the trainer, where it is the explorer too; a replaced one gets none.

        Returns:
            The new leases in slot order; fewer than wanted if the task set is exhausted.

        Raises:
            LostClaimError: Another trainer took over.
        """
        failpoint("lease.before")
        with self._database.write() as connection:
            if generation is not None:
                require_generation(connection, generation)
            _expire(connection, _overdue(connection), "its explorer was not heard of any more")
            issued = self._reissued(connection, step)[:most_again]
            last = connection.scalar(_LAST_SLOT, {"of_step": step})
            slot = 0 if last is None else last + 1
            for offset, (position, task_id) in enumerate(_next_tasks(connection, fresh, end, task_id_at)):
                lease_id = digest("lease", task_id, step, slot + offset, 0)
                issued.append(Lease(lease_id, step, slot + offset, position, task_id, 0))
            self._insert(connection, issued, explorer, lease_s)
        failpoint("lease.after")
        return sorted(issued, key=lambda lease: lease.slot)

    def admit(
        self,
        explorer: str,
        most: int,
        version: int,
        admission: Admission,
        task_id_at: Callable[[int], str],
        end: int | None,
        lease_s: float = LEASE_S,
    ) -> list[Lease]:
        """Lease tasks beside a trainer that goes on meanwhile, as far as its bound on staleness lets them.

        What must be tried again comes first, in its old slots. A fresh task belongs to the step that would train it if every group were
        trained in the order of the tasks; any step may take it.

        Args:
            explorer: Who will run them.
            most: How many tasks are wanted.
            version: The policy version that this explorer samples with.
            admission: The bound.
            task_id_at: The id of the task at a position of the task set's order.
            end: The first position that may not be leased; null if there is none.
            lease_s: Seconds until the leases expire, unless they are renewed.

        Returns:
            The new leases; fewer than wanted if the bound or the end of the task set says so.
        """
        failpoint("lease.before")
        with self._database.write() as connection:
            _expire(connection, _overdue(connection), "its explorer was not heard of any more")
            room = min(most, admission.room(connection, version))
            issued = [_again(row, version) for row in connection.execute(_TO_TRY_AGAIN, {"most": room})]
            for position, task_id in _next_tasks(connection, room - len(issued), end, task_id_at):
                step, slot = position // admission.batch_groups + 1, position % admission.batch_groups
                lease_id = digest("lease", task_id, step, slot, 0)
                issued.append(Lease(lease_id, step, slot, position, task_id, 0, version))
            self._insert(connection, issued, explorer, lease_s)
        failpoint("lease.after")
        return issued

    def renew(self, explorer: str, lease_s: float = LEASE_S) -> int:
        """A heartbeat: an explorer's leases last this much longer from now. Returns how many it still holds."""
        table = schema.leases
        with self._database.write() as connection:
            held = (table.c.explorer == explorer) & table.c.fate.is_(None)
            until = end_of_lease(now(connection), lease_s)
            return connection.execute(update(table).where(held).values(leased_until=until)).rowcount

    def expire_overdue(self) -> int:
        """Close the leases of explorers that were not heard of for too long; returns how many."""
        with self._database.write() as connection:
            return _expire(connection, _overdue(connection), "its explorer was not heard of any more")

    def num_overdue(self) -> int:
        """How many leases are in flight of explorers that were not heard of for too long."""
        with self._database.read() as connection:
            query = select(func.count()).where(schema.leases.c.fate.is_(None) & _overdue(connection))
            return connection.scalar(query) or 0

    def take_back(self, explorer: str, reason: str) -> int:
        """Close what an explorer holds, as expired: it is known to be dead. Returns how many leases there were."""
        with self._database.write() as connection:
            return _expire(connection, schema.leases.c.explorer == explorer, reason)

    def open(self, step: int, explorer: str | None = None) -> list[Lease]:
        """The leases of a step that are in flight, of one explorer or of all, in slot order."""
        table = schema.leases.c
        condition = (table.step == step) & table.fate.is_(None)
        if explorer is not None:
            condition &= table.explorer == explorer
        with self._database.read() as connection:
            return _leases(connection, condition)

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

    def num_admissible(self, version: int, admission: Admission) -> int:
        """How many further tasks `admit` would give an explorer that samples with a version."""
        with self._database.read() as connection:
            return admission.room(connection, version)

    def num_in_flight(self) -> int:
        """How many leases are open."""
        with self._database.read() as connection:
            return connection.scalar(_IN_FLIGHT) or 0

    def is_exhausted(self, end: int | None) -> bool:
        """Whether the task set has no further task: all were leased, nothing is in flight, and nothing must be tried again."""
        if end is None:
            return False
        with self._database.read() as connection:
            if (connection.scalar(_POSITION) or 0) < end or connection.scalar(_IN_FLIGHT):
                return False
            return connection.execute(_TO_TRY_AGAIN, {"most": 1}).first() is None

    def exhausted_at(self, end: int | None) -> int | None:
        """The step that leased the last task before `end`; null while there are more, or no end."""
        with self._database.read() as connection:
            position = connection.scalar(_POSITION) or 0
            if end is None or position < end:
                return None
            last: int | None = connection.scalar(select(func.max(schema.leases.c.step)))
            return last

    def end_run(self) -> int:
        """Close what the run's end leaves over, as unused: open leases and groups that no step took. Returns how many leases."""
        groups, leases = schema.groups, schema.leases
        unused = {"status": "unused", "reason": "the run ended"}
        with self._database.write() as connection:
            connection.execute(update(groups).where(groups.c.status.in_(("ready", "pending"))).values(**unused))
            connection.execute(update(groups).where(groups.c.queue.is_not(None)).values(queue=None))
            closing = {"fate": "unused", "reason": "the run ended", "closed_at": now(connection)}
            return connection.execute(update(leases).where(leases.c.fate.is_(None)).values(**closing)).rowcount

    def fates(self) -> dict[str, int]:
        """How many leases have each fate; the values add up to the number issued."""
        with self._database.read() as connection:
            return {row.fate: row.leases for row in connection.execute(text("select fate, leases from ledger order by fate"))}

    def num_issued(self) -> int:
        with self._database.read() as connection:
            return connection.scalar(select(func.count()).select_from(schema.leases)) or 0

    def _reissued(self, connection: Connection, step: int) -> list[Lease]:
        """New issues for the slots of a step whose newest lease expired, or belongs to a rollout that was rejected."""
        rows = connection.execute(_TO_REISSUE, {"of_step": step})
        return [_again(row) for row in rows]

    def _insert(self, connection: Connection, issued: list[Lease], explorer: str, lease_s: float) -> None:
        if issued:
            at = now(connection)
            shared = {"explorer": explorer, "issued_at": at, "leased_until": end_of_lease(at, lease_s), "reason": ""}
            connection.execute(_INSERT, [{name: getattr(lease, name) for name in Lease.__slots__} | shared for lease in issued])


def _next_tasks(connection: Connection, count: int, end: int | None, task_id_at: Callable[[int], str]) -> list[tuple[int, str]]:
    """Move the cursor on; returns positions and ids of the tasks that it passes."""
    position = connection.scalar(_POSITION) or 0
    count = count if end is None else max(0, min(count, end - position))
    if count:  # explorers ask all the time whether there is room: a refusal writes nothing, and so waits for no disk
        connection.execute(_MOVE, {"name": CURSOR, "to": position + count})
    return [(at, schema.storable(task_id_at(at))) for at in range(position, position + count)]  # ids as whoever reads the lease has them


def _again(row: Row[Any], version: int | None = None) -> Lease:
    """A new issue of a lease that came to nothing."""
    lease_id = digest("lease", row.task_id, row.step, row.slot, row.epoch + 1)
    return Lease(lease_id, row.step, row.slot, row.position, row.task_id, row.epoch + 1, version)


def _leases(connection: Connection, condition: ColumnElement[bool]) -> list[Lease]:
    columns = [schema.leases.c[name] for name in Lease.__slots__]
    return [Lease(*row) for row in connection.execute(select(*columns).where(condition).order_by(schema.leases.c.slot))]


def _overdue(connection: Connection) -> ColumnElement[bool]:
    return is_over(schema.leases.c.leased_until, now(connection))


def _expire(connection: Connection, which: ColumnElement[bool], reason: str) -> int:
    table = schema.leases
    values = {"fate": "expired", "reason": reason, "closed_at": now(connection)}
    return connection.execute(update(table).where(which & table.c.fate.is_(None)).values(**values)).rowcount
