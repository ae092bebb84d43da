"""Snapshots, compaction and retention: what the table was, and which files nothing needs any more.

A file that ends is no part of the table any more: a merged one holds its rows, or they were let go. It is deleted only when no
snapshot in use needs it. Its row stays, so that the key of its append is still known.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Table, delete, func, insert, select, update

from rft_core.catalog import schema
from rft_core.catalog.clock import now
from rft_core.catalog.database import Database, current_sequence, next_sequence
from rft_core.catalog.files import StoredFile, in_parts, insert_overlay, insert_segment, part_of, stored, take_intent
from rft_core.errors import LostClaimError, QueryError
from rft_core.failpoints import failpoint


@dataclass(frozen=True, slots=True)
class Part:
    """A segment or overlay, as compaction and retention see it."""

    key: str
    file: StoredFile
    created_at: float
    """When its newest rows were appended, in seconds since the epoch."""
    busy: bool = False
    """Of a segment: whether a group in it still waits for labels, shaping or training."""


class History:
    """What was part of the table, and what may go."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pin(self, name: str) -> int:
        """Name the present state of the table, and keep what it needs; a name that is there keeps its state. Returns its number."""
        with self._database.write() as connection:
            known = _pinned(connection, name)
            if known is not None:
                return known
            sequence = current_sequence(connection)
            connection.execute(insert(schema.snapshots).values(name=name, sequence=sequence, created_at=now(connection)))
        return sequence

    def unpin(self, name: str) -> None:
        """Let a named state go."""
        with self._database.write() as connection:
            connection.execute(delete(schema.snapshots).where(schema.snapshots.c.name == name))

    def pins(self) -> dict[str, int]:
        """The sequence numbers of the named states, oldest first."""
        table = schema.snapshots.c
        with self._database.read() as connection:
            return {row.name: row.sequence for row in connection.execute(select(table.name, table.sequence).order_by(table.sequence))}

    def named(self, name: str) -> int:
        """The sequence number of a named state.

        Raises:
            QueryError: No state has it.
        """
        with self._database.read() as connection:
            found = _pinned(connection, name)
        if found is None:
            raise QueryError(f"no state of the table is pinned as {name}", f"pinned are: {', '.join(self.pins()) or 'none'}")
        return found

    def now(self) -> float:
        """The database's clock, in seconds since the epoch."""
        with self._database.read() as connection:
            return now(connection)

    def segments(self) -> list[Part]:
        """The segments of the table, in the order in which their newest rows were appended: a merged one is as old as they are."""
        table, groups, origin = schema.segments, schema.groups.c, schema.segments.alias()
        newest = func.max(origin.c.sequence).label("sequence"), func.max(origin.c.created_at).label("created_at")
        appended = select(groups.segment, *newest).join(origin, origin.c.key == groups.origin).group_by(groups.segment).subquery()
        sequence = func.coalesce(appended.c.sequence, table.c.sequence)
        created_at = func.coalesce(appended.c.created_at, table.c.created_at).label("appended_at")
        query = select(table, created_at).outerjoin(appended, appended.c.segment == table.c.key).where(part_of(table, None))
        waiting = select(groups.segment).distinct().where(groups.queue.is_not(None))
        with self._database.read() as connection:
            busy = set(connection.scalars(waiting))
            rows = connection.execute(query.order_by(sequence)).mappings()
            return [Part(row["key"], stored(row), row["appended_at"], row["key"] in busy) for row in rows]

    def pipelines(self) -> list[str]:
        """The pipelines that have overlays."""
        with self._database.read() as connection:
            return list(connection.scalars(select(schema.overlays.c.pipeline).distinct().order_by(schema.overlays.c.pipeline)))

    def overlays(self, pipeline: str) -> list[Part]:
        """The overlays of a pipeline, in commit order."""
        table = schema.overlays
        with self._database.read() as connection:
            query = select(table).where(part_of(table, None) & (table.c.pipeline == pipeline)).order_by(table.c.sequence)
            rows = connection.execute(query).mappings().all()
        return [Part(row["key"], stored(row), row["created_at"]) for row in rows]

    def replace_segments(self, old: Sequence[str], key: str, file: StoredFile, schema_version: int) -> None:
        """Put one segment with the rows of several in their place: compaction's one transaction.

        Raises:
            LostClaimError: The intent was swept, or one of them is no part of the table any more.
        """
        segments, groups = schema.segments, schema.groups
        with self._database.write() as connection:
            take_intent(connection, key, file.uri)
            sequence = next_sequence(connection)
            _end(connection, segments, old, sequence)
            parts = in_parts(old)
            steps = [connection.scalar(select(func.max(segments.c.step)).where(segments.c.key.in_(some))) or 0 for some in parts]
            insert_segment(connection, key, file, "compaction", max(steps), schema_version, sequence)
            for some in parts:
                connection.execute(update(groups).where(groups.c.segment.in_(some)).values(segment=key))
        failpoint("compact.committed")

    def superseded(self, keys: Sequence[str]) -> set[str]:
        """Those of some overlays that say something old of a group, of which an overlay that is not among them says something newer."""
        with self._database.read() as connection:
            return _superseded(connection, keys)

    def replace_overlays(self, old: Sequence[str], key: str, pipeline: str, file: StoredFile) -> None:
        """Put one overlay with the newest of what several say in their place.

        Raises:
            LostClaimError: The intent was swept, one of them is no part of the table any more, or they were superseded meanwhile.
        """
        shaped = schema.shaped
        with self._database.write() as connection:
            take_intent(connection, key, file.uri)
            superseded = _superseded(connection, old)
            if superseded:
                raise LostClaimError(f"{len(superseded)} of {len(old)} overlays say something old", "merge them without what is superseded")
            sequence = next_sequence(connection)
            _end(connection, schema.overlays, old, sequence)
            insert_overlay(connection, key, pipeline, sequence, file, "[]")
            covered: set[str] = set()
            for some in in_parts(old):
                covered.update(connection.scalars(select(shaped.c.group_id).where(shaped.c.overlay.in_(some))))
            rows = [{"group_id": group_id, "pipeline": pipeline, "sequence": sequence, "overlay": key} for group_id in sorted(covered)]
            if rows:
                connection.execute(insert(shaped), rows)
        failpoint("compact.committed")

    def let_go(self, keys: Sequence[str]) -> None:
        """End segments whose rows are to be forgotten: retention. Their groups and leases keep their fates."""
        with self._database.write() as connection:
            _end(connection, schema.segments, keys, next_sequence(connection))

    def collectable(self, in_use: Sequence[int], ended_before_s: float) -> list[tuple[str, str, str]]:
        """Files that may be deleted: table, key and URI.

        Args:
            in_use: Sequence numbers of states that are needed besides the pinned ones, such as those of kept checkpoints.
            ended_before_s: Only what ended longer ago than this, so that whoever reads it now can finish.
        """
        with self._database.read() as connection:
            states = [*in_use, *connection.scalars(select(schema.snapshots.c.sequence))]
            found: list[tuple[str, str, str]] = []
            for table in (schema.segments, schema.overlays):
                columns = table.c
                gone = columns.ended.is_not(None) & columns.collected_at.is_(None) & (columns.ended_at <= now(connection) - ended_before_s)
                rows = connection.execute(select(columns.key, columns.uri, columns.sequence, columns.ended).where(gone))
                found += [(table.name, row.key, row.uri) for row in rows if not any(row.sequence <= state < row.ended for state in states)]
        return found

    def collected(self, table: str, keys: Sequence[str]) -> None:
        """The files of these keys were deleted."""
        which = schema.metadata.tables[table]
        with self._database.write() as connection:
            for some in in_parts(keys):
                connection.execute(update(which).where(which.c.key.in_(some)).values(collected_at=now(connection)))
                if table == "overlays":
                    connection.execute(delete(schema.shaped).where(schema.shaped.c.overlay.in_(some)))

    def of_claims(self, from_step: int) -> list[int]:
        """Sequence numbers of the states that the claims from a step on are read at."""
        with self._database.read() as connection:
            snapshots = connection.scalars(select(schema.claims.c.snapshot).where(schema.claims.c.step >= from_step))
            return [json.loads(snapshot)["sequence"] for snapshot in snapshots]


def _superseded(connection: Connection, keys: Sequence[str]) -> set[str]:
    old, new = schema.shaped, schema.shaped.alias()
    newer = (new.c.group_id == old.c.group_id) & (new.c.pipeline == old.c.pipeline) & (new.c.sequence > old.c.sequence)
    query = select(old.c.overlay, new.c.overlay.label("by")).join(new, newer).distinct()
    among, found = set(keys), set[str]()
    for some in in_parts(keys):
        rows = connection.execute(query.where(old.c.overlay.in_(some)))
        found.update(row.overlay for row in rows if row.by not in among)
    return found


def _pinned(connection: Connection, name: str) -> int | None:
    sequence: int | None = connection.scalar(select(schema.snapshots.c.sequence).where(schema.snapshots.c.name == name))
    return sequence


def _end(connection: Connection, table: Table, keys: Sequence[str], sequence: int) -> None:
    ended, at = 0, now(connection)
    for some in in_parts(keys):
        live = table.c.key.in_(some) & table.c.ended.is_(None)
        ended += connection.execute(update(table).where(live).values(ended=sequence, ended_at=at)).rowcount
    if ended != len(keys):
        raise LostClaimError(f"{len(keys) - ended} of {len(keys)} files are no part of the table any more", "another compaction went first")
