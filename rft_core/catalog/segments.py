"""Segments and overlays: which files hold experiences, and how a file becomes part of the table."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, text, update

from rft_core.catalog import schema
from rft_core.catalog.clock import is_recent, now
from rft_core.catalog.database import Database, current_sequence, next_sequence
from rft_core.catalog.files import StoredFile, in_parts, insert_overlay, insert_segment, part_of, stored, take_intent
from rft_core.catalog.labels import REWARD
from rft_core.errors import LostClaimError

INTENT_S = 600.0
"""An intent older than this may be swept: whoever announced it takes too long, and fails cleanly when it commits."""
_TAKEN_BACK = ""
"""Key of an intent that was swept, and whose file may still be there: nothing commits under it."""

# What every append does is built once, see `files`.
_FIND = select(schema.segments).where(schema.segments.c.key == bindparam("of_key"))
_INTEND = text(
    "insert into intents (uri, key, writer, created_at) values (:uri, :key, :writer, :at)"
    " on conflict (uri) do update set key = excluded.key, writer = excluded.writer, created_at = excluded.created_at"
).bindparams(*(bindparam(name, type_=schema.AnyText) for name in ("uri", "key", "writer")))
_LEASED = (
    select(schema.leases)
    .outerjoin(schema.groups, schema.groups.c.lease_id == schema.leases.c.lease_id)
    .where(schema.groups.c.group_id.is_(None), schema.leases.c.lease_id.in_(bindparam("lease_ids", expanding=True)))
)
_CLOSE = update(schema.leases).where(schema.leases.c.lease_id.in_(bindparam("lease_ids", expanding=True)))
_INSERT_GROUPS = insert(schema.groups)


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group that a segment brings."""

    group_id: str
    lease_id: str
    size: int
    status: str
    reason: str
    lowest_version: int
    source: str = "policy"
    priority: float = 0.0
    queue: str | None = None
    """What it waits for: `labels`, `shaping`, `training`, or nothing."""
    rewarded: int = 0
    """Attempts that have a reward."""
    awaits: Sequence[Sequence[str]] = ()
    """For each attempt that has no reward yet, its experience ids."""
    due_in_s: float | None = None
    """Seconds after which it is settled without labels; null: never."""


class Segments:
    """The files of the experience table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, key: str) -> StoredFile | None:
        """The committed segment of this key."""
        with self._database.read() as connection:
            return _found(connection, key)

    def intend(self, key: str, uri: str, writer: str) -> None:
        """Announce a file before it is written, so that a sweeper knows whose it is."""
        with self._database.write() as connection:
            _intend(connection, key, uri, writer)

    def find_or_intend(self, key: str, uri: str, writer: str) -> StoredFile | None:
        """The committed segment of this key; where there is none, a file of it is announced as by `intend`."""
        with self._database.write() as connection:
            known = _found(connection, key)
            if known is None:
                _intend(connection, key, uri, writer)
        return known

    def commit(
        self,
        key: str,
        file: StoredFile,
        explorer: str,
        step: int,
        schema_version: int,
        groups: Sequence[NewGroup],
        rejected: str | None = None,
    ) -> None:
        """Turn an intent into a segment, and close its leases: the commit point of an append.

        Groups whose lease is closed already are kept as `late`: their rows are there to be seen, and no step takes them.

        Args:
            key: The idempotence key that was intended.
            file: What was written.
            explorer: Who sampled it.
            step: The step that it was sampled for.
            schema_version: Of the rows.
            groups: What it holds.
            rejected: Why nothing of it may be trained; its leases have failed then, and are issued again.

        Raises:
            LostClaimError: The intent was swept, or somebody else brought a group for one of the leases.
        """
        with self._database.write() as connection:
            take_intent(connection, key, file.uri)
            leased = _leased(connection, [group.lease_id for group in groups])
            unknown = [group.lease_id for group in groups if group.lease_id not in leased]
            if unknown:
                raise LostClaimError(
                    f"{len(unknown)} leases of {key} are unknown, or have their group already", "let the one who wrote it go on"
                )
            in_time = [group.lease_id for group in groups if leased[group.lease_id]["fate"] is None]
            _close(connection, in_time, rejected)
            insert_segment(connection, key, file, explorer, step, schema_version)
            at = now(connection)
            rows = [_group_row(group, leased[group.lease_id], key, at) for group in groups]
            if rows:
                connection.execute(_INSERT_GROUPS, rows)

    def sweepable(self, writer: str | None = None, older_than_s: float = INTENT_S) -> list[tuple[str, str]]:
        """Key and URI of files that were announced and not committed: those of one writer, which is dead, and those that are too old."""
        with self._database.read() as connection:
            return [(row.key, row.uri) for row in connection.execute(_abandoned(connection, writer, older_than_s))]

    def sweep(
        self, writer: str | None = None, older_than_s: float = INTENT_S, remove: Callable[[str], object] = lambda uri: None
    ) -> list[str]:
        """Take such intents back, and remove their files after: a slow writer then fails cleanly when it commits.

        They are forgotten when the files are gone. Whoever is killed before leaves them to the next sweep, of whatever name.

        Args:
            writer: Whose intents besides those that are too old.
            older_than_s: Seconds after which an intent is too old.
            remove: Removes the file of a URI, and does nothing where there is none.

        Returns:
            The URIs.
        """
        table = schema.intents
        with self._database.write() as connection:
            uris = [row.uri for row in connection.execute(_abandoned(connection, writer, older_than_s))]
            for some in in_parts(uris):
                connection.execute(update(table).where(table.c.uri.in_(some)).values(key=_TAKEN_BACK, created_at=0.0))
        for uri in uris:
            remove(uri)
        with self._database.write() as connection:
            for some in in_parts(uris):
                connection.execute(delete(table).where(table.c.uri.in_(some)))
        return uris

    def intended_uris(self) -> list[str]:
        """Files that were announced and not committed."""
        with self._database.read() as connection:
            return list(connection.scalars(select(schema.intents.c.uri)))

    def to_shape(self) -> dict[str, list[str]]:
        """The groups that wait for the run's pipeline, by the append that brought them, in commit and slot order."""
        groups, segments = schema.groups.c, schema.segments.c
        query = (
            select(groups.origin, groups.group_id)
            .join_from(schema.groups, schema.segments, segments.key == groups.origin)
            .where(text("queue = 'shaping'"))
            .order_by(segments.sequence, groups.slot)
        )
        waiting: dict[str, list[str]] = {}
        with self._database.read() as connection:
            for row in connection.execute(query):
                waiting.setdefault(row.origin, []).append(row.group_id)
        return waiting

    def pass_shaping(self) -> None:
        """Let groups that wait for shaping go on: for a run without operators, whose catalog an older version began."""
        with self._database.write() as connection:
            connection.execute(update(schema.groups).where(text("queue = 'shaping'")).values(queue="training"))

    def has_overlay(self, key: str) -> bool:
        with self._database.read() as connection:
            return connection.execute(select(schema.overlays.c.key).where(schema.overlays.c.key == key)).first() is not None

    def commit_overlay(
        self,
        key: str,
        pipeline: str,
        file: StoredFile,
        group_ids: Sequence[str],
        account: Any,
        dropped: Mapping[str, str],
        moves_on: bool = True,
        read_at: int | None = None,
    ) -> None:
        """Turn an intent into an overlay. A second one of the same key changes nothing.

        Args:
            key: The idempotence key that was intended.
            pipeline: The version of the pipeline.
            file: What was written.
            group_ids: The groups that it lies over.
            account: What the operators say of what they did; plain values.
            dropped: The reason of each group of which it leaves nothing.
            moves_on: Whether it is the run's own pipeline that the groups wait for: they may be trained then, or are dropped.
            read_at: Sequence number of the state that the groups were read at: those that got another reward since wait on.

        Raises:
            LostClaimError: The intent was swept.
        """
        with self._database.write() as connection:
            if connection.execute(select(schema.overlays.c.key).where(schema.overlays.c.key == key)).first():
                return
            take_intent(connection, key, file.uri)
            sequence = next_sequence(connection)
            insert_overlay(connection, key, pipeline, sequence, file, json.dumps(account))
            rows = [{"group_id": group_id, "pipeline": pipeline, "sequence": sequence, "overlay": key} for group_id in group_ids]
            connection.execute(insert(schema.shaped), rows)
            if moves_on:
                outdated = set() if read_at is None else _rewarded_since(connection, group_ids, read_at)
                shaped = [group_id for group_id in group_ids if group_id not in outdated]
                _move_on(connection, shaped, {group_id: dropped[group_id] for group_id in shaped if group_id in dropped})

    def of_groups(self, group_ids: Sequence[str]) -> dict[str, tuple[str, StoredFile]]:
        """For each group, key and file of its segment; a group whose rows were let go has none."""
        table = schema.segments
        query = (
            select(schema.groups.c.group_id, table)
            .join(table, schema.groups.c.segment == table.c.key)
            .where(table.c.collected_at.is_(None))
        )
        found: dict[str, tuple[str, StoredFile]] = {}
        with self._database.read() as connection:
            for some in in_parts(group_ids):
                rows = connection.execute(query.where(schema.groups.c.group_id.in_(some))).mappings()
                found.update({row["group_id"]: (row["key"], stored(row)) for row in rows})
        return found

    def overlays_of(self, pipeline: str, group_ids: Sequence[str], at: int | None = None) -> dict[str, StoredFile]:
        """For each group, the newest overlay of a pipeline over it, or the newest one at a sequence number."""
        shaped, overlays = schema.shaped.c, schema.overlays
        query = (
            select(shaped.group_id, overlays)
            .join(overlays, overlays.c.key == shaped.overlay)
            .where((shaped.pipeline == pipeline) & overlays.c.collected_at.is_(None))
            .order_by(shaped.sequence)
        )
        if at is not None:
            query = query.where(shaped.sequence <= at)
        found: dict[str, StoredFile] = {}
        with self._database.read() as connection:
            for some in in_parts(group_ids):
                rows = connection.execute(query.where(shaped.group_id.in_(some))).mappings()
                found.update({row["group_id"]: stored(row) for row in rows})  # in order: the newest one stays
        return found

    def files(self, at: int | None = None) -> list[tuple[str, StoredFile]]:
        """Key and file of every segment of the table as it is, or was at a sequence number, in commit order."""
        return self._files(schema.segments, at)

    def overlay_files(self, pipeline: str | None = None, at: int | None = None) -> list[tuple[str, int, StoredFile]]:
        """Key, sequence number and file of the overlays of a pipeline, or of all of them, in commit order."""
        table = schema.overlays
        query = select(table).where(part_of(table, at)).order_by(table.c.sequence)
        if pipeline is not None:
            query = query.where(table.c.pipeline == pipeline)
        with self._database.read() as connection:
            return [(row["key"], row["sequence"], stored(row)) for row in connection.execute(query).mappings()]

    def groups_in(self, segment: str) -> dict[str, int]:
        """The groups whose rows a segment holds, with their sizes, in slot order."""
        table = schema.groups.c
        query = select(table.group_id, table.size).where(table.segment == segment).order_by(table.step, table.slot)
        with self._database.read() as connection:
            return {row.group_id: row.size for row in connection.execute(query)}

    def groups_of_step(self, step: int) -> dict[str, str]:
        """The groups that were sampled for a step, late ones left out, in slot order, each with its status."""
        table = schema.groups.c
        of_step = (table.step == step) & (table.status != "late")
        query = select(table.group_id, table.status).where(of_step).order_by(table.slot, table.origin)
        with self._database.read() as connection:
            return {row.group_id: row.status for row in connection.execute(query)}

    def groups_between(self, after: int, upto: int) -> dict[str, str]:
        """The groups that came between two states of the table, in commit and slot order, each with its status."""
        groups, segments = schema.groups.c, schema.segments.c
        query = (
            select(groups.group_id, groups.status)
            .join_from(schema.groups, schema.segments, segments.key == groups.origin)
            .where((segments.sequence > after) & (segments.sequence <= upto))
            .order_by(segments.sequence, groups.slot)
        )
        with self._database.read() as connection:
            return {row.group_id: row.status for row in connection.execute(query)}

    def num_appends(self, step: int) -> int:
        """How many appends brought groups for a step, in time."""
        table = schema.groups.c
        in_time = (table.step == step) & (table.status != "late")
        with self._database.read() as connection:
            return connection.scalar(select(func.count(table.origin.distinct())).where(in_time)) or 0

    def snapshot(self) -> int:
        """The newest sequence number, which names the state of the table."""
        with self._database.read() as connection:
            return current_sequence(connection)

    def totals(self) -> dict[str, int]:
        """How many segments the table has, with their rows and bytes."""
        table = schema.segments
        query = select(func.count(), func.coalesce(func.sum(table.c.rows), 0), func.coalesce(func.sum(table.c.bytes), 0))
        with self._database.read() as connection:
            count, rows, size = connection.execute(query.where(part_of(table, None))).one()
        return {"segments": count, "rows": int(rows), "bytes": int(size)}

    def _files(self, table: Table, at: int | None) -> list[tuple[str, StoredFile]]:
        with self._database.read() as connection:
            rows = connection.execute(select(table).where(part_of(table, at)).order_by(table.c.sequence)).mappings()
            return [(row["key"], stored(row)) for row in rows]


def _found(connection: Connection, key: str) -> StoredFile | None:
    row = connection.execute(_FIND, {"of_key": key}).mappings().first()
    return None if row is None else stored(row)


def _intend(connection: Connection, key: str, uri: str, writer: str) -> None:
    connection.execute(_INTEND, {"uri": uri, "key": key, "writer": writer, "at": now(connection)})


def _abandoned(connection: Connection, writer: str | None, older_than_s: float) -> Any:
    table = schema.intents.c
    old = ~is_recent(table.created_at, now(connection), older_than_s)
    return select(table.key, table.uri).where(old if writer is None else old | (table.writer == writer)).order_by(table.uri)


def _leased(connection: Connection, lease_ids: list[str]) -> dict[str, Any]:
    """The leases that have no group yet, by id."""
    found: dict[str, Any] = {}
    for some in in_parts(lease_ids):
        found.update({row["lease_id"]: row for row in connection.execute(_LEASED, {"lease_ids": some}).mappings()})
    return found


def _close(connection: Connection, lease_ids: list[str], rejected: str | None) -> None:
    fate = {"fate": "stored"} if rejected is None else {"fate": "failed", "reason": rejected}
    for some in in_parts(lease_ids):
        connection.execute(_CLOSE, {"lease_ids": some, "closed_at": now(connection), **fate})


def _group_row(group: NewGroup, lease: Any, key: str, at: float) -> dict[str, Any]:
    values = {name: getattr(group, name) for name in NewGroup.__slots__ if name not in ("awaits", "due_in_s")}
    values |= {name: lease[name] for name in ("task_id", "step", "slot")}
    values |= {"segment": key, "origin": key, "awaits": json.dumps(group.awaits) if group.awaits else None}
    values["due_at"] = None if group.due_in_s is None else at + group.due_in_s
    if lease["fate"] is not None:
        values |= {"status": "late", "reason": f"its lease had ended: {lease['fate']}", "queue": None}
    return values


def _rewarded_since(connection: Connection, group_ids: Sequence[str], at: int) -> set[str]:
    """The groups that got another reward after a state."""
    table = schema.labels.c
    query = select(table.group_id).where((table.field == REWARD) & (table.sequence > at))
    return {group_id for some in in_parts(group_ids) for group_id in connection.scalars(query.where(table.group_id.in_(some)))}


def _move_on(connection: Connection, group_ids: Sequence[str], dropped: Mapping[str, str]) -> None:
    """Shaped groups wait for training; those of which operators left nothing are dropped."""
    table = schema.groups
    waiting = table.c.queue == "shaping"
    for group_id, reason in dropped.items():
        mine = waiting & (table.c.group_id == group_id)
        connection.execute(update(table).where(mine & (table.c.status == "ready")).values(status="dropped", reason=reason))
        connection.execute(update(table).where(mine).values(queue=None))
    for some in in_parts([group_id for group_id in group_ids if group_id not in dropped]):
        connection.execute(update(table).where(waiting & table.c.group_id.in_(some)).values(queue="training"))
