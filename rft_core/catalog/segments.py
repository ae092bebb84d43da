"""Segments and overlays: which files hold experiences, and how a file becomes part of the table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from rft_core.catalog import schema
from rft_core.catalog.database import Database, next_sequence, now
from rft_core.errors import LostClaimError


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An immutable Parquet file of this run."""

    uri: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group that a segment brings."""

    group_id: str
    lease_id: str
    size: int
    status: str
    reason: str
    lowest_version: int


class Segments:
    """The files of the experience table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, key: str) -> StoredFile | None:
        """The committed segment of this key."""
        with self._database.read() as connection:
            row = connection.execute(select(schema.segments).where(schema.segments.c.key == key)).mappings().first()
        return None if row is None else _stored(row)

    def intend(self, key: str, uri: str) -> None:
        """Announce a file before it is written, so that a sweeper knows whose it is."""
        with self._database.write() as connection:
            connection.execute(delete(schema.intents).where(schema.intents.c.key == key))
            connection.execute(insert(schema.intents).values(key=key, uri=uri, created_at=now(connection)))

    def commit(
        self,
        key: str,
        file: StoredFile,
        size: int,
        explorer: str,
        step: int,
        schema_version: int,
        groups: Sequence[NewGroup],
        rejected: str | None = None,
    ) -> None:
        """Turn an intent into a segment, and close its leases: the commit point of an append.

        Args:
            key: The idempotence key that was intended.
            file: What was written.
            size: Its bytes.
            explorer: Who sampled it.
            step: The step that it was sampled for.
            schema_version: Of the rows.
            groups: What it holds; each lease must still be open.
            rejected: Why nothing of it may be trained; its leases have failed then, and are issued again.

        Raises:
            LostClaimError: The intent was swept, or a lease was closed: somebody else took over.
        """
        with self._database.write() as connection:
            intended = connection.execute(delete(schema.intents).where((schema.intents.c.key == key) & (schema.intents.c.uri == file.uri)))
            if intended.rowcount != 1:
                raise LostClaimError(f"the intent to write {key} was taken back by another process", "let that one go on")
            closed = self._close_leases(connection, [group.lease_id for group in groups], rejected)
            if closed != len(groups):
                raise LostClaimError(f"{len(groups) - closed} leases of {key} were closed by another process", "let that one go on")
            connection.execute(
                insert(schema.segments).values(
                    key=key,
                    sequence=next_sequence(connection),
                    uri=file.uri,
                    rows=file.rows,
                    bytes=size,
                    sha256=file.sha256,
                    schema_version=schema_version,
                    explorer=explorer,
                    step=step,
                    created_at=now(connection),
                )
            )
            self._insert_groups(connection, key, groups)

    def intended_uris(self) -> list[str]:
        """Files that were announced and not committed."""
        with self._database.read() as connection:
            return list(connection.scalars(select(schema.intents.c.uri)))

    def forget_intents(self) -> None:
        """Take back every intent: a slow writer then fails cleanly when it commits."""
        with self._database.write() as connection:
            connection.execute(delete(schema.intents))

    def unshaped(self, step: int, pipeline: str) -> list[str]:
        """Keys of the step's segments that have no overlay of this pipeline yet, in commit order."""
        shaped = select(schema.overlays.c.segment).where(schema.overlays.c.pipeline == pipeline)
        table = schema.segments.c
        with self._database.read() as connection:
            return list(
                connection.scalars(select(table.key).where((table.step == step) & table.key.not_in(shaped)).order_by(table.sequence))
            )

    def commit_overlay(self, pipeline: str, segment: str, file: StoredFile, account: Any, dropped: Mapping[str, str]) -> None:
        """Add an overlay; groups that it leaves nothing of are marked as dropped. A second one of the same key changes nothing.

        Args:
            pipeline: The version of the pipeline.
            segment: Key of the segment that it lies over.
            file: What was written.
            account: What the operators say of what they did; plain values.
            dropped: Reason by group id.
        """
        table = schema.overlays
        with self._database.write() as connection:
            if connection.execute(select(table).where((table.c.pipeline == pipeline) & (table.c.segment == segment))).first():
                return
            connection.execute(
                insert(table).values(
                    pipeline=pipeline,
                    segment=segment,
                    sequence=next_sequence(connection),
                    uri=file.uri,
                    rows=file.rows,
                    sha256=file.sha256,
                    account=json.dumps(account),
                    created_at=now(connection),
                )
            )
            for group_id, reason in dropped.items():
                ready = (schema.groups.c.group_id == group_id) & (schema.groups.c.status == "ready")
                connection.execute(update(schema.groups).where(ready).values(status="dropped", reason=reason))

    def of_groups(self, group_ids: Sequence[str]) -> dict[str, tuple[str, StoredFile]]:
        """For each group, key and file of its segment."""
        table = schema.segments
        query = select(schema.groups.c.group_id, table).join(table, schema.groups.c.segment == table.c.key)
        with self._database.read() as connection:
            rows = connection.execute(query.where(schema.groups.c.group_id.in_(group_ids))).mappings().all()
        return {row["group_id"]: (row["key"], _stored(row)) for row in rows}

    def overlay(self, pipeline: str, segment: str) -> StoredFile | None:
        """The overlay of a pipeline over a segment."""
        table = schema.overlays.c
        with self._database.read() as connection:
            row = (
                connection.execute(select(schema.overlays).where((table.pipeline == pipeline) & (table.segment == segment)))
                .mappings()
                .first()
            )
        return None if row is None else _stored(row)

    def files(self) -> list[tuple[str, StoredFile]]:
        """Key and file of every segment, in commit order."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.segments).order_by(schema.segments.c.sequence)).mappings()
            return [(row["key"], _stored(row)) for row in rows]

    def overlay_files(self, pipeline: str | None = None) -> list[StoredFile]:
        """The overlays of a pipeline, or of all of them, in commit order."""
        table = schema.overlays.c
        query = select(schema.overlays).order_by(table.sequence)
        if pipeline is not None:
            query = query.where(table.pipeline == pipeline)
        with self._database.read() as connection:
            return [_stored(row) for row in connection.execute(query).mappings()]

    def groups_of(self, segment: str) -> list[str]:
        """Ids of a segment's groups, in slot order."""
        table = schema.groups.c
        with self._database.read() as connection:
            return list(connection.scalars(select(table.group_id).where(table.segment == segment).order_by(table.slot)))

    def keys_of_step(self, step: int) -> list[str]:
        """Keys of the step's segments, in commit order."""
        table = schema.segments.c
        with self._database.read() as connection:
            return list(connection.scalars(select(table.key).where(table.step == step).order_by(table.sequence)))

    def snapshot(self) -> dict[str, int]:
        """The newest sequence numbers, which name the state of the table."""
        with self._database.read() as connection:
            return {
                "segment": connection.scalar(select(func.max(schema.segments.c.sequence))) or 0,
                "overlay": connection.scalar(select(func.max(schema.overlays.c.sequence))) or 0,
            }

    def _close_leases(self, connection: Connection, lease_ids: list[str], rejected: str | None) -> int:
        table = schema.leases
        still_open = table.c.lease_id.in_(lease_ids) & table.c.fate.is_(None)
        fate = {"fate": "stored"} if rejected is None else {"fate": "failed", "reason": rejected}
        return connection.execute(update(table).where(still_open).values(**fate, closed_at=now(connection))).rowcount

    def _insert_groups(self, connection: Connection, key: str, groups: Sequence[NewGroup]) -> None:
        columns = (schema.leases.c.lease_id, schema.leases.c.task_id, schema.leases.c.step, schema.leases.c.slot)
        rows = connection.execute(select(*columns).where(schema.leases.c.lease_id.in_([g.lease_id for g in groups])))
        leased = {row.lease_id: row for row in rows}
        for group in groups:
            lease = leased[group.lease_id]
            values = {name: getattr(group, name) for name in NewGroup.__slots__}
            connection.execute(insert(schema.groups).values(**values, segment=key, task_id=lease.task_id, step=lease.step, slot=lease.slot))


def _stored(row: Any) -> StoredFile:
    return StoredFile(row["uri"], row["rows"], row["sha256"])
