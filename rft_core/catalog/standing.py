"""How a run stands, read at one moment: what waits for what, and who is at work."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text

from rft_core.catalog import schema
from rft_core.catalog.clock import now
from rft_core.catalog.database import Database

REASONS_SHOWN = 10
"""Reasons for which leases came to nothing; the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Holder:
    """An explorer with open leases."""

    explorer: str
    leases: int
    expires_in_s: float
    """Until the first of them expires, unless it is heard of."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Who uses which version."""

    reader: str
    version: int
    seen_s_ago: float


@dataclass(frozen=True, slots=True)
class LastClaim:
    """The newest batch that was chosen."""

    step: int
    groups: int
    staleness: int
    """Versions that its oldest group lies behind the one that the step started from."""
    left_out: Mapping[str, int]
    """How many groups it did not take, by reason."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Leases that came to nothing for one reason."""

    fate: str
    reason: str
    leases: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How a run stands."""

    waiting: Mapping[str, int]
    """How many groups wait for `labels`, `shaping` and `training`."""
    due_in_s: float | None
    """Until the deadline of the first group that waits for labels; null if none has one."""
    holders: tuple[Holder, ...]
    readers: tuple[Reader, ...]
    last_claim: LastClaim | None
    unused: tuple[Unused, ...]
    """The most frequent reasons first."""


def read_standing(database: Database) -> Standing:
    """Read how a run stands, in one view of the catalog."""
    with database.read() as connection:
        at = now(connection)
        groups, leases, readers = schema.groups.c, schema.leases.c, schema.readers.c
        counted = select(groups.queue, func.count().label("groups")).where(groups.queue.is_not(None)).group_by(groups.queue)
        waiting = {row.queue: row.groups for row in connection.execute(counted)}
        first_due = connection.scalar(select(func.min(groups.due_at)).where(text("queue = 'labels'")))
        held = select(leases.explorer, func.count().label("leases"), func.min(leases.leased_until).label("until"))
        held = held.where(leases.fate.is_(None)).group_by(leases.explorer).order_by(leases.explorer)
        return Standing(
            waiting={queue: waiting.get(queue, 0) for queue in ("labels", "shaping", "training")},
            due_in_s=None if first_due is None else first_due - at,
            holders=tuple(Holder(row.explorer, row.leases, (row.until or at) - at) for row in connection.execute(held)),
            readers=tuple(
                Reader(row.reader, row.version, at - row.seen_at)
                for row in connection.execute(select(readers.reader, readers.version, readers.seen_at).order_by(readers.reader))
            ),
            last_claim=_last_claim(connection),
            unused=_unused(connection),
        )


def _last_claim(connection: Connection) -> LastClaim | None:
    row = connection.execute(select(schema.claims).order_by(schema.claims.c.step.desc()).limit(1)).first()
    if row is None:
        return None
    return LastClaim(row.step, len(json.loads(row.groups)), json.loads(row.snapshot).get("staleness", 0), json.loads(row.left_out))


def _unused(connection: Connection) -> tuple[Unused, ...]:
    query = text(
        "select fate, reason, count(*) as leases from fates where fate not in ('in_flight', 'ready', 'pending', 'trained') "
        "group by fate, reason order by count(*) desc, fate, reason limit :most"
    )
    return tuple(Unused(row.fate, row.reason, row.leases) for row in connection.execute(query, {"most": REASONS_SHOWN}))
