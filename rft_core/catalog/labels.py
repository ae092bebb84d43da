"""Labels: what people and models say of experiences afterwards. They are only ever added."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, bindparam, func, insert, select, text, update

from rft_core.catalog import schema
from rft_core.catalog.clock import now
from rft_core.catalog.database import Database, next_sequence
from rft_core.catalog.files import in_parts
from rft_core.failpoints import failpoint

REWARD = "reward"
"""The field whose labels stand for the reward of an attempt."""
PRIORITY = "priority"
"""The field whose labels set the priority of a group."""

Settlement = Literal["drop", "train_rest"]


@dataclass(frozen=True, slots=True)
class Label:
    """What somebody says of an experience."""

    key: str
    """Idempotence key: a second label with it changes nothing."""
    experience_id: str
    group_id: str
    field: str
    value: float
    author: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of adding labels."""

    added: int
    repeated: int
    """Those whose key was known already."""
    completed: tuple[str, ...]
    """Groups that waited for these rewards, and wait no more."""


class Labels:
    """The labels of the experience table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, labels: Sequence[Label], ready_for: str) -> Applied:
        """Add labels, all or none of them; groups that get their last reward by them go on.

        A group that waits for training and gets another reward is shaped again, if the run shapes.

        Args:
            labels: Of experiences of this table.
            ready_for: What complete groups wait for next: `shaping` or `training`.
        """
        failpoint("label.before")
        with self._database.write() as connection:
            fresh = _fresh(connection, labels)
            if fresh:
                _insert(connection, fresh)
            touched = list(dict.fromkeys(label.group_id for label in fresh if label.field == REWARD))
            completed = tuple(group_id for group_id in touched if _complete(connection, group_id, ready_for))
            again = [{"id": group_id, "to": ready_for} for group_id in touched]
            if again:
                table = schema.groups
                waits = (table.c.group_id == bindparam("id")) & (table.c.queue == "training")
                connection.execute(update(table).where(waits).values(queue=bindparam("to")), again)
            _prioritise(connection, {label.group_id: label.value for label in fresh if label.field == PRIORITY})
        failpoint("label.after")
        return Applied(len(fresh), len(labels) - len(fresh), completed)

    def num_due(self) -> int:
        """How many groups wait for labels until a deadline."""
        with self._database.read() as connection:
            return connection.scalar(text("select count(*) from groups where queue = 'labels' and due_at is not null")) or 0

    def prioritise(self, priorities: dict[str, float]) -> None:
        """Set the priority of groups, by id."""
        with self._database.write() as connection:
            _prioritise(connection, priorities)

    def settle(self, then: Settlement, ready_for: str) -> tuple[int, int]:
        """Settle the groups whose deadline for labels has passed: drop them, or train on the attempts that have a reward.

        Returns:
            How many were dropped, and how many go on; one of which no attempt has a reward is dropped.
        """
        table = schema.groups.c
        with self._database.write() as connection:
            due = text("queue = 'labels'") & (table.due_at < now(connection))
            rows = connection.execute(select(table.group_id, table.rewarded, table.awaits).where(due)).all()
            num_going_on = 0
            for row in rows:
                goes_on = then == "train_rest" and _num_rewarded(connection, row) > 0
                values = {"status": "ready", "reason": "", "queue": ready_for} if goes_on else _UNLABELLED
                connection.execute(update(schema.groups).where(table.group_id == row.group_id).values(values))
                num_going_on += goes_on
        return len(rows) - num_going_on, num_going_on

    def of_groups(self, group_ids: Sequence[str], field: str, at: int | None = None) -> dict[str, list[tuple[str, float]]]:
        """Author and value of each label of a field, by experience id, oldest first; up to a sequence number."""
        table = schema.labels.c
        query = select(table.experience_id, table.author, table.value).where(table.field == field).order_by(table.sequence)
        if at is not None:
            query = query.where(table.sequence <= at)
        found: dict[str, list[tuple[str, float]]] = {}
        with self._database.read() as connection:
            for some in in_parts(group_ids):
                for row in connection.execute(query.where(table.group_id.in_(some))):
                    found.setdefault(row.experience_id, []).append((row.author, row.value))
        return found

    def newest(self, group_ids: Sequence[str], field: str, at: int) -> int:
        """Sequence number of the newest label of a field on any of the groups, as it was at a state; 0 if there is none."""
        table = schema.labels.c
        newest = 0
        with self._database.read() as connection:
            for some in in_parts(group_ids):
                said = (table.field == field) & (table.sequence <= at) & table.group_id.in_(some)
                query = select(func.max(table.sequence)).where(said)
                newest = max(newest, connection.scalar(query) or 0)
        return newest

    def count(self) -> int:
        """How many labels there are."""
        with self._database.read() as connection:
            return connection.scalar(select(func.count()).select_from(schema.labels)) or 0


_UNLABELLED = {"status": "dropped", "reason": "no label before its deadline", "queue": None}


def _fresh(connection: Connection, labels: Sequence[Label]) -> list[Label]:
    """Labels whose key is new, the first of each."""
    by_key: dict[str, Label] = {}
    for label in labels:
        by_key.setdefault(schema.storable(label.key), label)
    for some in in_parts(list(by_key)):
        for known in connection.scalars(select(schema.labels.c.key).where(schema.labels.c.key.in_(some))):
            del by_key[known]
    return list(by_key.values())


def _insert(connection: Connection, labels: Sequence[Label]) -> None:
    first, at = next_sequence(connection, len(labels)) - len(labels) + 1, now(connection)
    rows = [
        {name: getattr(label, name) for name in Label.__slots__} | {"sequence": first + offset, "created_at": at}
        for offset, label in enumerate(labels)
    ]
    connection.execute(insert(schema.labels), rows)


def _complete(connection: Connection, group_id: str, ready_for: str) -> bool:
    """Let a group that waits for labels go on if every attempt has a reward now."""
    table = schema.groups.c
    row = connection.execute(select(table.awaits).where((table.group_id == group_id) & (table.queue == "labels"))).first()
    if row is None or _missing(connection, group_id, row.awaits):
        return False
    values = {"status": "ready", "reason": "", "queue": ready_for, "awaits": None}
    connection.execute(update(schema.groups).where(table.group_id == group_id).values(values))
    return True


def _missing(connection: Connection, group_id: str, awaits: str | None) -> list[list[str]]:
    """The attempts of a group that still have no reward, as their experience ids."""
    table = schema.labels.c
    labelled = set(connection.scalars(select(table.experience_id).where((table.group_id == group_id) & (table.field == REWARD))))
    return [attempt for attempt in _attempts(awaits) if not labelled & set(attempt)]


def _attempts(awaits: str | None) -> list[list[str]]:
    """The attempts that a group waited for when it came; it is not known of those that an older version stored."""
    attempts: list[list[str]] = json.loads(awaits or "[]")
    return attempts


def _num_rewarded(connection: Connection, group: Any) -> int:
    """The attempts of a group that have a reward, by themselves or from labels."""
    return int(group.rewarded) + len(_attempts(group.awaits)) - len(_missing(connection, group.group_id, group.awaits))


def _prioritise(connection: Connection, priorities: dict[str, float]) -> None:
    if priorities:
        table = schema.groups
        statement = update(table).where(table.c.group_id == bindparam("id")).values(priority=bindparam("to"))
        connection.execute(statement, [{"id": group_id, "to": value} for group_id, value in priorities.items()])
