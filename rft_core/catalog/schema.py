"""The tables of the catalog, and the views that people and programs ask.

Sequence numbers come from one counter row that is locked in the committing transaction, so they are in commit order:
a number names a state of the table.
"""

from sqlalchemy import Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, UniqueConstraint

VERSION = 1
"""Of this schema; kept in `meta`. A catalog of a newer version is refused, an older one is migrated when it is opened."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", Integer, nullable=False),
    comment="`schema_version`, and `sequence`: the last sequence number that was given out",
)

cursors = Table(
    "cursors",
    metadata,
    Column("name", String, primary_key=True, comment="`tasks` for the task set"),
    Column("position", Integer, nullable=False, comment="the next position to lease; never rolls back"),
    Column("fingerprint", String, comment="of the task set whose positions these are"),
)

leases = Table(
    "leases",
    metadata,
    Column("lease_id", String, primary_key=True),
    Column("step", Integer, nullable=False, comment="the step that it is issued for"),
    Column("slot", Integer, nullable=False, comment="place of the group in its step, from 0"),
    Column("position", Integer, nullable=False, comment="of the task in the task set's endless order"),
    Column("task_id", String, nullable=False),
    Column("epoch", Integer, nullable=False, comment="0, and one more each time that the same slot is issued again"),
    Column("explorer", String, nullable=False),
    Column("issued_at", Float, nullable=False),
    Column("closed_at", Float, comment="null while in flight"),
    Column("fate", String, comment="null while in flight; `stored`: the group's status is the fate; else expired, failed or unused"),
    Column("reason", String, nullable=False, default=""),
    UniqueConstraint("step", "slot", "epoch"),
)

intents = Table(
    "intents",
    metadata,
    Column("key", String, primary_key=True, comment="what is about to be written; a retry has the same key"),
    Column("uri", String, nullable=False),
    Column("created_at", Float, nullable=False),
)

segments = Table(
    "segments",
    metadata,
    Column("key", String, primary_key=True, comment="idempotence key: a second append with it changes nothing"),
    Column("sequence", Integer, nullable=False, unique=True),
    Column("uri", String, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("sha256", String, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("explorer", String, nullable=False),
    Column("step", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
)

groups = Table(
    "groups",
    metadata,
    Column("group_id", String, primary_key=True),
    Column("lease_id", String, ForeignKey("leases.lease_id"), nullable=False, unique=True),
    Column("task_id", String, nullable=False),
    Column("segment", String, ForeignKey("segments.key"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("size", Integer, nullable=False, comment="attempts, failed ones included"),
    Column("status", String, nullable=False, comment="ready, pending, trained, dropped, failed, timed_out, stale, unused"),
    Column("reason", String, nullable=False, default=""),
    Column("lowest_version", Integer, nullable=False, comment="oldest policy version that sampled it"),
    Column("trained_step", Integer, comment="the step that trained it first"),
    Index("groups_by_status", "status", "step", "slot"),
)

overlays = Table(
    "overlays",
    metadata,
    Column("pipeline", String, primary_key=True, comment="version of the pipeline of operators"),
    Column("segment", String, ForeignKey("segments.key"), primary_key=True),
    Column("sequence", Integer, nullable=False, unique=True),
    Column("uri", String, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("sha256", String, nullable=False),
    Column("account", String, nullable=False, comment="JSON: for each operator what went in, came out, and why"),
    Column("created_at", Float, nullable=False),
)

trainers = Table(
    "trainers",
    metadata,
    Column("generation", Integer, primary_key=True, comment="the highest one is the run's trainer; others can't commit"),
    Column("process", String, nullable=False),
    Column("started_at", Float, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("step", Integer, primary_key=True),
    Column("groups", String, nullable=False, comment="JSON list of group ids, in the order of the batch"),
    Column("snapshot", String, nullable=False, comment="JSON: last segment and overlay sequence number, and the pipeline"),
    Column("generation", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    Column("step", Integer, primary_key=True),
    Column("status", String, nullable=False, comment="`trained`, or `skipped` where no update was made"),
    Column("version", Integer, nullable=False, comment="the policy version that it made"),
    Column("metrics", String, nullable=False, comment="JSON, keyed as in rft_core.metrics"),
    Column("checkpoint", String, comment="uri of the step's full checkpoint, if it has one"),
    Column("generation", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("committed_at", Float, nullable=False),
)

weights = Table(
    "weights",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("step", Integer, nullable=False),
    Column("uri", String, comment="null for a version that lives in a process only, or whose files were collected"),
    Column("sha256", String, comment="of the manifest; kept when the files are collected"),
    Column("pinned", String, comment="why its files must stay, as in `registered`; null where they need not"),
    Column("generation", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
)

readers = Table(
    "readers",
    metadata,
    Column("reader", String, primary_key=True),
    Column("version", Integer, nullable=False, comment="in use; its files are not collected"),
    Column("seen_at", Float, nullable=False),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("name", String, primary_key=True, comment="the held-out set"),
    Column("version", Integer, primary_key=True),
    Column("metrics", String, nullable=False, comment="JSON"),
    Column("uri", String, nullable=False, comment="the scored answers, as Parquet"),
    Column("created_at", Float, nullable=False),
)

FATES_VIEW = """
create view fates as
select l.lease_id, l.step, l.slot, l.task_id, l.epoch, l.explorer, g.group_id, g.trained_step,
       case when l.fate is null then 'in_flight' when l.fate = 'stored' then g.status else l.fate end as fate,
       case when l.fate = 'stored' then g.reason else l.reason end as reason
from leases l left join groups g on g.lease_id = l.lease_id
"""
"""One row a lease, one fate each."""

FATES_COLUMNS: dict[str, type] = {
    "lease_id": str,
    "step": int,
    "slot": int,
    "task_id": str,
    "epoch": int,
    "explorer": str,
    "group_id": str,
    "trained_step": int,
    "fate": str,
    "reason": str,
}
