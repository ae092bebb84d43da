"""Bringing a catalog of an older schema to the present one, in the transaction that opens it: whole or not at all."""

import json
from collections.abc import Callable

from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Connection, Table, select, text, update

from rft_core.catalog import schema


def migrate(connection: Connection, found: int) -> None:
    """Bring the tables from schema `found`, one of `MIGRATIONS` or the present one, to `schema.VERSION`, one version at a time."""
    if found == schema.VERSION:
        return
    operations = Operations(MigrationContext.configure(connection))
    for view in reversed(schema.VIEWS):
        connection.execute(text(f"drop view if exists {view}"))
    for version in range(found, schema.VERSION):
        MIGRATIONS[version](connection, operations)
    schema.create_views(connection)
    counter = schema.meta.c
    connection.execute(update(schema.meta).where(counter.key == "schema_version").values(value=schema.VERSION))


def _from_1(connection: Connection, op: Operations) -> None:
    """Version 2: expiring leases and trainers, queues, priorities and reuse of groups, labels, snapshots, compaction."""
    op.drop_index("groups_by_status", "groups")
    op.rename_table("overlays", "overlays_1")
    op.rename_table("intents", "intents_1")
    _add(op, schema.leases, "leased_until")
    _add(op, schema.segments, "ended", "ended_at", "collected_at")
    _add(op, schema.groups, "origin", "source", "queue", "priority", "uses", "claimed_step", "again_from", "rewarded", "awaits", "due_at")
    _add(op, schema.trainers, "identity", "seen_at", "leased_until")
    _add(op, schema.claims, "left_out")
    _add(op, schema.evaluations, "sha256")
    for table in (schema.intents, schema.overlays, schema.shaped, schema.labels, schema.snapshots):
        table.create(connection)
    for table in (schema.leases, schema.groups):
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    connection.execute(text(_OVERLAYS_FROM_1))
    connection.execute(text(_SHAPED_FROM_1))
    connection.execute(text("insert into intents (uri, key, created_at) select uri, key, created_at from intents_1"))
    op.drop_table("overlays_1")
    op.drop_table("intents_1")
    connection.execute(text("update groups set origin = segment"))
    connection.execute(text("update groups set queue = 'labels' where status = 'pending'"))
    connection.execute(text("update groups set queue = 'shaping' where status = 'ready'"))
    connection.execute(text("update groups set queue = 'training' where status = 'ready' and group_id in (select group_id from shaped)"))
    _mark_claimed(connection)


def _from_2(connection: Connection, op: Operations) -> None:
    """Version 3: leases say which policy version they are for, those to be tried again are found whatever their step, readers are known."""
    _add(op, schema.leases, "policy_version")
    _add(op, schema.readers, "identity")
    for index in schema.leases.indexes:
        index.create(connection, checkfirst=True)


_OVERLAYS_FROM_1 = """
insert into overlays (key, pipeline, sequence, uri, rows, bytes, sha256, account, created_at)
select pipeline || '-' || segment, pipeline, sequence, uri, rows, 0, sha256, account, created_at from overlays_1
"""

_SHAPED_FROM_1 = """
insert into shaped (group_id, pipeline, sequence, overlay)
select g.group_id, o.pipeline, o.sequence, o.pipeline || '-' || o.segment from groups g join overlays_1 o on o.segment = g.segment
"""


def _mark_claimed(connection: Connection) -> None:
    """Groups that a step has claimed wait for nothing any more; a claim names the state that it is read at by one number."""
    groups, claims = schema.groups, schema.claims
    for claim in connection.execute(select(claims.c.step, claims.c.groups, claims.c.snapshot)).all():
        named = json.loads(claim.snapshot)
        named["sequence"] = max(named.pop("segment"), named.pop("overlay"))
        connection.execute(update(claims).where(claims.c.step == claim.step).values(snapshot=json.dumps(named)))
        taken = groups.c.group_id.in_(json.loads(claim.groups))
        connection.execute(update(groups).where(taken).values(queue=None, claimed_step=claim.step, uses=1))


def _add(op: Operations, table: Table, *names: str) -> None:
    for name in names:
        column = table.c[name]
        op.add_column(table.name, Column(name, column.type, nullable=column.nullable, server_default=column.server_default))


MIGRATIONS: dict[int, Callable[[Connection, Operations], None]] = {1: _from_1, 2: _from_2}
"""For each older schema, the step to the next one."""
