"""Claims and steps: what each step is trained on, chosen once, and what came of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, insert, select, update

from rft_core.catalog import schema
from rft_core.catalog.database import Database, now, require_generation
from rft_core.failpoints import failpoint


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A group that a step may train on."""

    group_id: str
    step: int
    slot: int
    lowest_version: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The batch of one step, and the state of the table that it is read at."""

    step: int
    group_ids: tuple[str, ...]
    snapshot: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One committed step."""

    step: int
    status: str
    version: int
    metrics: Mapping[str, float]
    checkpoint: str | None
    started_at: float
    committed_at: float


class Claims:
    """Exactly once: a step's batch is written here before it is trained, and read from here when it is redone."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take_over(self, process: str) -> int:
        """Become the run's trainer; whoever was it can't commit any more. Returns the new generation."""
        with self._database.write() as connection:
            generation = (connection.scalar(select(func.max(schema.trainers.c.generation))) or 0) + 1
            connection.execute(insert(schema.trainers).values(generation=generation, process=process, started_at=now(connection)))
        return generation

    def ready(self) -> list[ReadyGroup]:
        """The groups that may be trained on, oldest first."""
        table = schema.groups.c
        columns = [table[name] for name in ReadyGroup.__slots__]
        with self._database.read() as connection:
            return [
                ReadyGroup(*row)
                for row in connection.execute(select(*columns).where(table.status == "ready").order_by(table.step, table.slot))
            ]

    def find(self, step: int) -> Claim | None:
        """The claim of a step, if it was made."""
        with self._database.read() as connection:
            row = connection.execute(select(schema.claims).where(schema.claims.c.step == step)).mappings().first()
        return None if row is None else Claim(step, tuple(json.loads(row["groups"])), json.loads(row["snapshot"]))

    def make(self, claim: Claim, stale: Sequence[str], generation: int) -> None:
        """Write a step's claim; groups that are too old for any step from now on become stale.

        Raises:
            LostClaimError: Another trainer took over.
        """
        failpoint("claim.before")
        with self._database.write() as connection:
            require_generation(connection, generation)
            values = {"step": claim.step, "groups": json.dumps(claim.group_ids), "snapshot": json.dumps(dict(claim.snapshot))}
            connection.execute(insert(schema.claims).values(**values, generation=generation, created_at=now(connection)))
            old = schema.groups.c.group_id.in_(stale)
            connection.execute(update(schema.groups).where(old).values(status="stale", reason=f"older than step {claim.step} allows"))
        failpoint("claim.after")

    def commit_step(self, row: StepRow, trained: Sequence[str], left_out: Mapping[str, str], generation: int) -> None:
        """Commit a step; a redone one keeps the row that it has.

        Args:
            row: `committed_at` is set here.
            trained: Groups that it learned from.
            left_out: Claimed groups that had nothing to learn from, with the reason; they count as dropped.
            generation: Of this trainer.

        Raises:
            LostClaimError: Another trainer took over.
        """
        failpoint("step.before")
        table = schema.groups
        with self._database.write() as connection:
            require_generation(connection, generation)
            if connection.execute(select(schema.steps.c.step).where(schema.steps.c.step == row.step)).first() is None:
                values = {name: getattr(row, name) for name in StepRow.__slots__}
                values |= {"metrics": json.dumps(dict(row.metrics)), "committed_at": now(connection), "generation": generation}
                connection.execute(insert(schema.steps).values(**values))
            first = table.c.group_id.in_(trained) & table.c.trained_step.is_(None)
            connection.execute(update(table).where(first).values(status="trained", trained_step=row.step))
            for group_id, reason in left_out.items():
                ready = (table.c.group_id == group_id) & (table.c.status == "ready")
                connection.execute(update(table).where(ready).values(status="dropped", reason=reason))
        failpoint("step.after")

    def steps(self, up_to: int | None = None) -> list[StepRow]:
        """The committed steps in order, up to and with a number."""
        query = select(*[schema.steps.c[name] for name in StepRow.__slots__]).order_by(schema.steps.c.step)
        if up_to is not None:
            query = query.where(schema.steps.c.step <= up_to)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [StepRow(**{**row, "metrics": json.loads(row["metrics"])}) for row in rows]
