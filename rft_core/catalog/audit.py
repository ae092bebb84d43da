"""Whether the catalog agrees with itself: every sum, and every name of something else."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from sqlalchemy import Connection, func, select, text

from rft_core.catalog import schema
from rft_core.catalog.database import Database, current_sequence
from rft_core.catalog.files import StoredFile, in_parts, stored

SHOWN = 20
"""Breaches of one rule that are named; the others are counted."""

_RESTORE = "the catalog was changed by something else: restore it from a copy"


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file that the catalog holds as written and not deleted."""

    table: Literal["segments", "overlays"]
    key: str
    file: StoredFile
    form: str
    """Of a segment the version of its columns, of an overlay its pipeline."""
    sequence: int
    ended: int | None
    """The sequence number from which it is no part of the table; null while it is one."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """What must never be there: the rows of a query, each with the line that names it."""

    broken: str
    found: str
    remedy: str = _RESTORE


_RULES = (
    _Rule(
        "select l.lease_id, l.step, l.slot from leases l left join groups g on g.lease_id = l.lease_id "
        "where l.fate = 'stored' and g.group_id is null",
        "lease {lease_id} (step {step}, slot {slot}) was stored, and has no group",
    ),
    _Rule(
        "select g.group_id, g.lease_id from groups g left join leases l on l.lease_id = g.lease_id where l.lease_id is null",
        "group {group_id} is of lease {lease_id}, which is not there",
    ),
    _Rule(
        """
select g.group_id, g.status, coalesce(l.fate, 'in_flight') as fate from groups g join leases l on l.lease_id = g.lease_id
where l.fate is null or (l.fate = 'stored' and g.status = 'late') or (l.fate = 'failed' and g.status not in ('failed', 'late'))
or (l.fate in ('expired', 'unused') and g.status <> 'late')""",
        "group {group_id} is {status}, and its lease {fate}",
    ),
    _Rule(
        "select lease_id, fate from leases where fate not in ('stored', 'expired', 'failed', 'unused')",
        "lease {lease_id} has the fate {fate}, which nothing here gives",
    ),
    _Rule(
        """
select group_id, status from groups
where status not in ('ready', 'pending', 'trained', 'dropped', 'failed', 'timed_out', 'stale', 'unused', 'late')""",
        "group {group_id} has the status {status}, which nothing here gives",
    ),
    _Rule(
        """
select n.step, n.slot, n.epoch from leases n join leases l on l.step = n.step and l.slot = n.slot and l.epoch = n.epoch - 1
where l.fate is null or l.fate not in ('expired', 'failed')""",
        "slot {slot} of step {step} was issued again as epoch {epoch}, and the issue before has neither expired nor failed",
    ),
    _Rule(
        "select g.group_id, g.segment from groups g left join segments s on s.key = g.segment where s.key is null",
        "group {group_id} is in segment {segment}, which is not there",
    ),
    _Rule(
        """
select group_id, status, coalesce(queue, 'nothing') as waits_for from groups
where queue not in ('labels', 'shaping', 'training') or (queue = 'labels' and status <> 'pending')
or (status = 'pending' and (queue is null or queue <> 'labels'))
or (queue in ('shaping', 'training') and status not in ('ready', 'trained'))
or (status = 'ready' and queue is null and claimed_step is null)""",
        "group {group_id} is {status}, and waits for {waits_for}",
    ),
    _Rule(
        "select g.group_id, g.claimed_step from groups g join steps s on s.step = g.claimed_step where g.status = 'ready'",
        "group {group_id} was claimed by step {claimed_step}, which is committed and neither trained nor dropped it",
    ),
    _Rule(
        """
select g.group_id, g.status, g.trained_step from groups g left join steps s on s.step = g.trained_step
where (g.status = 'trained' and g.trained_step is null) or (g.trained_step is not null and (g.status <> 'trained' or s.step is null))""",
        "group {group_id} is {status} and was trained by step {trained_step}, which don't go together",
    ),
    _Rule(
        "select c.step from claims c where c.step < 1 or (c.step > 1 and not exists (select 1 from claims p where p.step = c.step - 1))",
        "step {step} has a claim, and the step before has none",
    ),
    _Rule(
        "select c.step from steps c where c.step < 1 or (c.step > 1 and not exists (select 1 from steps p where p.step = c.step - 1))",
        "step {step} is committed, and the step before is not",
    ),
    _Rule(
        "select s.step from steps s left join claims c on c.step = s.step where c.step is null",
        "step {step} is committed, and has no claim",
    ),
    _Rule(
        "select l.key, l.experience_id, l.group_id from labels l left join groups g on g.group_id = l.group_id where g.group_id is null",
        "a label of experience {experience_id} is of group {group_id}, which is not there",
    ),
    _Rule(
        """
select s.group_id, s.pipeline, s.overlay from shaped s left join overlays o on o.key = s.overlay
where o.key is null or o.collected_at is not null""",
        "pipeline {pipeline} says what it made of group {group_id} in overlay {overlay}, which is not there",
    ),
    _Rule(
        "select s.group_id, s.overlay from shaped s left join groups g on g.group_id = s.group_id where g.group_id is null",
        "overlay {overlay} lies over group {group_id}, which is not there",
    ),
    _Rule(
        """
select n.kind, n.highest, m.value from meta m join (
    select 'segments' as kind, max(coalesce(ended, sequence)) as highest from segments
    union all select 'overlays', max(coalesce(ended, sequence)) from overlays union all select 'labels', max(sequence) from labels
    union all select 'snapshots', max(sequence) from snapshots) n on n.highest > m.value
where m.key = 'sequence'""",
        "{kind} have the sequence number {highest}, and the counter is at {value} only",
    ),
    _Rule(
        """
select c.position, l.leased from cursors c
join (select count(*) as leased, coalesce(max(position), -1) as last from leases where epoch = 0) l on 1 = 1
where c.name = 'tasks' and (c.position <> l.leased or c.position <= l.last)""",
        "the cursor is at task {position}, and {leased} tasks were leased",
    ),
    _Rule(
        "select i.issued, l.total from (select count(*) as issued from leases) i join (select sum(leases) as total from ledger) l on 1 = 1 "
        "where i.issued <> coalesce(l.total, 0)",
        "the fates add up to {total}, and {issued} leases were issued",
    ),
)

_UNSHAPED = _Rule(
    "select g.group_id from groups g where g.queue = 'training' "
    "and not exists (select 1 from shaped s where s.group_id = g.group_id and s.pipeline = :pipeline)",
    "group {group_id} waits for training, and the run's pipeline has not shaped it",
)


class Audit:
    """Reads the catalog as a whole, and changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def breaches(self, pipeline: str | None) -> list[str]:
        """Everything in which the catalog does not agree with itself, one line each: what was found; what to do.

        Args:
            pipeline: Version of the run's pipeline of operators, which groups pass before they wait for training; null for none.
        """
        with self._database.read() as connection:
            found = _damaged_pages(connection)
            for rule in _RULES:
                found += _breaches_of(connection, rule, {})
            if pipeline is not None:
                found += _breaches_of(connection, _UNSHAPED, {"pipeline": pipeline})
            return [*found, *_shown(_claim_breaches(connection)), *_shown(_training_breaches(connection))]

    def counts(self) -> dict[str, int]:
        """How many rows the tables have that an audit reads."""
        tables = (schema.leases, schema.groups, schema.labels, schema.claims, schema.steps)
        with self._database.read() as connection:
            return {table.name: connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables}

    def files(self) -> list[FileRow]:
        """Every segment and overlay whose file must be there, in commit order; those that ended are among them."""
        found: list[FileRow] = []
        with self._database.read() as connection:
            for name, form in (("segments", schema.segments.c.schema_version), ("overlays", schema.overlays.c.pipeline)):
                table = schema.metadata.tables[name]
                rows = connection.execute(select(table).where(table.c.collected_at.is_(None)).order_by(table.c.sequence)).mappings()
                kind: Any = name
                found += [FileRow(kind, row["key"], stored(row), str(row[form.name]), row["sequence"], row["ended"]) for row in rows]
        return found

    def unknown_leases(self, lease_ids: Sequence[str]) -> set[str]:
        """Those of the ids that name no lease of this run."""
        unknown = set(lease_ids)
        with self._database.read() as connection:
            for some in in_parts(sorted(unknown)):
                unknown.difference_update(connection.scalars(select(schema.leases.c.lease_id).where(schema.leases.c.lease_id.in_(some))))
        return unknown

    def claimed_steps(self, from_step: int) -> list[int]:
        """The steps that have a claim, from one on."""
        query = select(schema.claims.c.step).where(schema.claims.c.step >= from_step).order_by(schema.claims.c.step)
        with self._database.read() as connection:
            return list(connection.scalars(query))


def _damaged_pages(connection: Connection) -> list[str]:
    """What SQLite finds in its own file; PostgreSQL has no such question."""
    if connection.dialect.name != "sqlite":
        return []
    said = [str(row[0]) for row in connection.exec_driver_sql(f"pragma integrity_check({SHOWN})")]
    return [f"the catalog's file is damaged: {' '.join(line.split())}; restore catalog.db from a copy" for line in said if line != "ok"]


def _breaches_of(connection: Connection, rule: _Rule, values: dict[str, str]) -> list[str]:
    rows = connection.execute(text(rule.broken), values).mappings()
    return _shown(f"{rule.found.format_map(row)}; {rule.remedy}" for row in rows)


def _claim_breaches(connection: Connection) -> Iterator[str]:
    """Claims that name what is not there, or groups that don't know of them."""
    groups, claims = schema.groups.c, schema.claims.c
    newest, num_claimed = current_sequence(connection), 0
    for claim in connection.execute(select(claims.step, claims.groups, claims.snapshot).order_by(claims.step)):
        named, at = json.loads(claim.groups), json.loads(claim.snapshot)["sequence"]
        num_claimed += len(named)
        if at > newest:
            yield f"the claim of step {claim.step} is read at state {at}, and the newest one is {newest}; {_RESTORE}"
        if len(set(named)) < len(named):
            yield f"the claim of step {claim.step} names a group twice; {_RESTORE}"
        last_claimed: dict[str, int | None] = {}
        for some in in_parts(named):
            query = select(groups.group_id, groups.claimed_step).where(groups.group_id.in_(some))
            last_claimed.update({row.group_id: row.claimed_step for row in connection.execute(query)})
        for group_id in named:
            if group_id not in last_claimed:
                yield f"the claim of step {claim.step} names group {group_id}, which is not there; {_RESTORE}"
            elif (last_claimed[group_id] or 0) < claim.step:
                yield f"the claim of step {claim.step} names group {group_id}, which knows nothing of it; {_RESTORE}"
    uses = connection.scalar(select(func.coalesce(func.sum(groups.uses), 0)))
    if uses != num_claimed:
        yield f"groups were claimed {uses} times, and the claims name {num_claimed}; {_RESTORE}"


def _training_breaches(connection: Connection) -> Iterator[str]:
    """Groups that say which step trained them first, where that step's claim does not name them."""
    groups = schema.groups.c
    query = select(groups.group_id, groups.trained_step).where(groups.trained_step.is_not(None)).order_by(groups.trained_step)
    step, named = None, set[str]()
    for group in connection.execute(query):
        if group.trained_step != step:
            step = group.trained_step
            claimed = connection.scalar(select(schema.claims.c.groups).where(schema.claims.c.step == step))
            named = set(json.loads(claimed or "[]"))
        if group.group_id not in named:
            yield f"group {group.group_id} was trained by step {step}, whose claim does not name it; {_RESTORE}"


def _shown(lines: Iterable[str]) -> list[str]:
    """The first of some lines, and how many more there are."""
    iterator = iter(lines)
    shown = list(islice(iterator, SHOWN))
    more = sum(1 for _ in iterator)
    return [*shown, f"{shown[-1].partition(';')[0]}, and {more} more like it; {_RESTORE}"] if more else shown
