"""The tables of the catalog, and the views that people and programs ask.

Sequence numbers come from one counter row that is locked in the committing transaction, so they are in commit order:
a number names a state of the table. `rft_core.catalog.migrations` brings an older catalog to this schema.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    insert,
    text,
)
from sqlalchemy.types import TypeDecorator

VERSION = 3
"""Of this schema; kept in `meta`. A catalog of a newer version is refused, an older one is migrated when it is opened."""


def storable(value: str) -> str:
    """The same text as every database can hold it: NUL and lone surrogates become backslash escapes."""
    return value.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")


class AnyText(TypeDecorator[str]):
    """Text of any kind, which is stored and looked for as `storable` has it."""

    impl = String
    cache_ok = True

    @property
    def python_type(self) -> type[str]:
        return str

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """What a statement is given."""
        return None if value is None else storable(value)


_Bytes = BigInteger().with_variant(Integer, "sqlite")
"""A number of bytes; SQLite's integers are wide enough."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", AnyText, primary_key=True),
    Column("value", Integer, nullable=False),
    comment="`schema_version`, and `sequence`: the last sequence number that was given out",
)

cursors = Table(
    "cursors",
    metadata,
    Column("name", AnyText, primary_key=True, comment="`tasks` for the task set"),
    Column("position", Integer, nullable=False, comment="the next position to lease; never rolls back"),
    Column("fingerprint", AnyText, comment="of the task set whose positions these are"),
)

_TO_TRY_AGAIN: dict[str, Any] = {
    "sqlite_where": text("fate in ('expired', 'failed')"),
    "postgresql_where": text("fate in ('expired', 'failed')"),
}

leases = Table(
    "leases",
    metadata,
    Column("lease_id", AnyText, primary_key=True),
    Column("step", Integer, nullable=False, comment="the step that it is issued for"),
    Column("slot", Integer, nullable=False, comment="place of the group in its step, from 0"),
    Column("position", Integer, nullable=False, comment="of the task in the task set's endless order"),
    Column("task_id", AnyText, nullable=False),
    Column("epoch", Integer, nullable=False, comment="0, and one more each time that the same slot is issued again"),
    Column("explorer", AnyText, nullable=False),
    Column("issued_at", Float, nullable=False),
    Column("closed_at", Float, comment="null while in flight"),
    Column("fate", AnyText, comment="null while in flight; `stored`: the group's status is the fate; else expired, failed or unused"),
    Column("reason", AnyText, nullable=False, default=""),
    Column("leased_until", Float, comment="on the database's clock; its explorer moves it on, and once it is past the lease expires"),
    Column("policy_version", Integer, comment="that it is to be sampled with, where a trainer goes on meanwhile; null where it waits"),
    UniqueConstraint("step", "slot", "epoch"),
    Index("leases_in_flight", "explorer", "leased_until", sqlite_where=text("fate is null"), postgresql_where=text("fate is null")),
    Index("leases_to_try_again", "step", "slot", "epoch", **_TO_TRY_AGAIN),
)

intents = Table(
    "intents",
    metadata,
    Column("uri", AnyText, primary_key=True, comment="of the file that is about to be written, unique to this try"),
    Column("key", AnyText, nullable=False, comment="what it is to become; a retry has the same key"),
    Column("created_at", Float, nullable=False),
    Column("writer", AnyText, nullable=False, server_default="", comment="who announced it; it may sweep its own at once"),
)

segments = Table(
    "segments",
    metadata,
    Column("key", AnyText, primary_key=True, comment="idempotence key: a second append with it changes nothing"),
    Column("sequence", Integer, nullable=False, unique=True),
    Column("uri", AnyText, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("bytes", _Bytes, nullable=False),
    Column("sha256", AnyText, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("explorer", AnyText, nullable=False),
    Column("step", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended", Integer, comment="the sequence number from which it is no part of the table; null while it is one"),
    Column("ended_at", Float),
    Column("collected_at", Float, comment="when its file was deleted"),
)

_TO_TRAIN: dict[str, Any] = {"sqlite_where": text("queue = 'training'"), "postgresql_where": text("queue = 'training'")}
_TO_SHAPE: dict[str, Any] = {"sqlite_where": text("queue = 'shaping'"), "postgresql_where": text("queue = 'shaping'")}
_TO_LABEL: dict[str, Any] = {"sqlite_where": text("queue = 'labels'"), "postgresql_where": text("queue = 'labels'")}

groups = Table(
    "groups",
    metadata,
    Column("group_id", AnyText, primary_key=True),
    Column("lease_id", AnyText, ForeignKey("leases.lease_id"), nullable=False, unique=True),
    Column("task_id", AnyText, nullable=False),
    Column("segment", AnyText, ForeignKey("segments.key"), nullable=False, comment="where its rows are now"),
    Column("step", Integer, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("size", Integer, nullable=False, comment="attempts, failed ones included"),
    Column("status", AnyText, nullable=False, comment="ready, pending, trained, dropped, failed, timed_out, stale, unused, late"),
    Column("reason", AnyText, nullable=False, default=""),
    Column("lowest_version", Integer, nullable=False, comment="oldest policy version that sampled it"),
    Column("trained_step", Integer, comment="the step that trained it first"),
    Column("origin", AnyText, nullable=False, server_default="", comment="key of the append that brought it"),
    Column("source", AnyText, nullable=False, server_default="policy", comment="policy, expert or human: who wrote its trained tokens"),
    Column("queue", AnyText, comment="what it waits for: `labels`, `shaping` or `training`; null when no step will take it any more"),
    Column("priority", Float, nullable=False, server_default="0", comment="higher is trained earlier, where selection goes by it"),
    Column("uses", Integer, nullable=False, server_default="0", comment="claims that took it"),
    Column("claimed_step", Integer, comment="the last step that claimed it"),
    Column("again_from", Integer, nullable=False, server_default="0", comment="the first step that may take it (again)"),
    Column("rewarded", Integer, nullable=False, server_default="0", comment="attempts that came with a reward"),
    Column("awaits", AnyText, comment="JSON: for each attempt that has no reward yet, its experience ids"),
    Column("due_at", Float, comment="when a group that waits for labels is settled without them"),
    Index("groups_to_train", "source", "lowest_version", "step", "slot", **_TO_TRAIN),
    Index("groups_to_train_by_priority", "priority", "lowest_version", "step", "slot", **_TO_TRAIN),
    Index("groups_to_shape", "step", "slot", **_TO_SHAPE),
    Index("groups_to_label", "due_at", **_TO_LABEL),
    Index("groups_by_step", "step", "slot"),
    Index("groups_by_segment", "segment"),
)

overlays = Table(
    "overlays",
    metadata,
    Column("key", AnyText, primary_key=True),
    Column("pipeline", AnyText, nullable=False, comment="version of the pipeline of operators"),
    Column("sequence", Integer, nullable=False, unique=True),
    Column("uri", AnyText, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("bytes", _Bytes, nullable=False),
    Column("sha256", AnyText, nullable=False),
    Column("account", AnyText, nullable=False, comment="JSON: for each operator what went in, came out, and why"),
    Column("created_at", Float, nullable=False),
    Column("ended", Integer, comment="the sequence number from which it is no part of the table; null while it is one"),
    Column("ended_at", Float),
    Column("collected_at", Float, comment="when its file was deleted"),
)

shaped = Table(
    "shaped",
    metadata,
    Column("group_id", AnyText, primary_key=True),
    Column("pipeline", AnyText, primary_key=True),
    Column("sequence", Integer, primary_key=True, comment="that of the overlay; the highest one counts"),
    Column("overlay", AnyText, nullable=False, comment="key of the overlay that says what the pipeline made of the group"),
    Index("shaped_by_overlay", "overlay"),
)

labels = Table(
    "labels",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False, comment="its version: the highest one is the newest"),
    Column("key", AnyText, nullable=False, unique=True, comment="idempotence key: a second label with it changes nothing"),
    Column("experience_id", AnyText, nullable=False),
    Column("group_id", AnyText, nullable=False),
    Column("field", AnyText, nullable=False, comment="`reward`, `priority`, or any other name"),
    Column("value", Float, nullable=False),
    Column("author", AnyText, nullable=False),
    Column("note", AnyText, nullable=False, server_default=""),
    Column("created_at", Float, nullable=False),
    Index("labels_by_group", "group_id", "field"),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("name", AnyText, primary_key=True),
    Column("sequence", Integer, nullable=False, comment="what came up to and with this number"),
    Column("created_at", Float, nullable=False),
    comment="pinned states of the table: what they need is kept",
)

trainers = Table(
    "trainers",
    metadata,
    Column("generation", Integer, primary_key=True, comment="the highest one is the run's trainer; others can't commit"),
    Column("process", AnyText, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("identity", AnyText, nullable=False, server_default="", comment="by which another process of its machine sees whether it lives"),
    Column("seen_at", Float, comment="its last heartbeat"),
    Column("leased_until", Float, comment="until then nobody else may take the run over, unless it is known to be dead"),
)

claims = Table(
    "claims",
    metadata,
    Column("step", Integer, primary_key=True),
    Column("groups", AnyText, nullable=False, comment="JSON list of group ids, in the order of the batch"),
    Column("snapshot", AnyText, nullable=False, comment="JSON: sequence number of the state, and the pipeline"),
    Column("generation", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("left_out", AnyText, nullable=False, server_default="{}", comment="JSON: how many groups it did not take, by reason"),
)

steps = Table(
    "steps",
    metadata,
    Column("step", Integer, primary_key=True),
    Column("status", AnyText, nullable=False, comment="`trained`, or `skipped` where no update was made"),
    Column("version", Integer, nullable=False, comment="the policy version that it made"),
    Column("metrics", AnyText, nullable=False, comment="JSON, keyed as in rft_core.metrics"),
    Column("checkpoint", AnyText, comment="uri of the step's full checkpoint, if it has one"),
    Column("generation", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("committed_at", Float, nullable=False),
)

weights = Table(
    "weights",
    metadata,
    Column("version", Integer, primary_key=True),
    Column("step", Integer, nullable=False),
    Column("uri", AnyText, comment="null for a version that lives in a process only, or whose files were collected"),
    Column("sha256", AnyText, comment="of the manifest; kept when the files are collected"),
    Column("pinned", AnyText, comment="why its files must stay, as in `registered`; null where they need not"),
    Column("generation", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
)

readers = Table(
    "readers",
    metadata,
    Column("reader", AnyText, primary_key=True),
    Column("version", Integer, nullable=False, comment="in use; its files are not collected. -1 before the first one"),
    Column("seen_at", Float, nullable=False),
    Column("identity", AnyText, nullable=False, server_default="", comment="by which another process of its machine sees whether it lives"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("name", AnyText, primary_key=True, comment="the held-out set"),
    Column("version", Integer, primary_key=True),
    Column("metrics", AnyText, nullable=False, comment="JSON"),
    Column("uri", AnyText, nullable=False, comment="the scored answers, as Parquet"),
    Column("created_at", Float, nullable=False),
    Column("sha256", AnyText, comment="of that file; null for those of an older schema"),
)

VIEWS = {
    "fates": """
create view fates as
select l.lease_id, l.step, l.slot, l.task_id, l.epoch, l.explorer, g.group_id, g.trained_step,
       case when l.fate is null then 'in_flight' when l.fate = 'stored' then g.status else l.fate end as fate,
       case when l.fate = 'stored' then g.reason else l.reason end as reason
from leases l left join groups g on g.lease_id = l.lease_id
""",
    "ledger": "create view ledger as select fate, count(*) as leases from fates group by fate",
}
"""`fates`: one row a lease, one fate each. `ledger`: the sums, which add up to the number of leases issued."""

VIEW_COLUMNS: dict[str, dict[str, type]] = {
    "fates": {
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
    },
    "ledger": {"fate": str, "leases": int},
}


def create(connection: Connection) -> None:
    """Make every table and view of an empty catalog."""
    metadata.create_all(connection)
    create_views(connection)
    connection.execute(insert(meta), [{"key": "schema_version", "value": VERSION}, {"key": "sequence", "value": 0}])


def create_views(connection: Connection) -> None:
    """Make the views."""
    for view in VIEWS.values():
        connection.execute(text(view))
