"""Claims and steps: what each step is trained on, chosen once, and what came of it."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, case, insert, select, text, update

from rft_core.catalog import schema
from rft_core.catalog.admission import last_committed
from rft_core.catalog.candidates import Candidate, Candidates
from rft_core.catalog.clock import now
from rft_core.catalog.database import Database, current_sequence
from rft_core.catalog.files import in_parts
from rft_core.catalog.trainers import require_generation
from rft_core.failpoints import failpoint
from rft_core.types import Source

_WAITING = text("select group_id from groups where queue = 'training' limit :most")


@dataclass(frozen=True, slots=True)
class Reuse:
    """That a claimed group may be claimed again."""

    priority: float
    """From now on."""
    again_from: int
    """The first step that may take it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a selection chose."""

    groups: Sequence[Candidate]
    """The batch, in its order."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many groups it passed over, by reason."""
    reuse: Mapping[str, Reuse] = field(default_factory=dict)
    """By id, the groups that later steps may take again."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The batch of one step, and the state of the table that it is read at."""

    step: int
    group_ids: tuple[str, ...]
    snapshot: Mapping[str, Any]
    """The `sequence` number of the state, the `pipeline` whose overlays count, the `staleness` of the oldest group, and how many groups lie
    how many versions `behind`."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """How many groups the selection passed over, by reason."""


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

    def find(self, step: int) -> Claim | None:
        """The claim of a step, if it was made."""
        with self._database.read() as connection:
            return _claim(connection, step)

    def make(
        self,
        step: int,
        choose: Callable[[Candidates], Choice],
        version: int,
        max_staleness: int,
        pipeline: str | None,
        generation: int,
        least: int = 0,
    ) -> Claim | None:
        """Choose a step's batch, once: a step that has a claim keeps it.

        The choice, the groups that it takes and what it leaves out become part of the catalog in one transaction.

        Args:
            step: The step.
            choose: Chooses among the groups that wait for training and are fresh enough.
            version: The policy version that the step starts from.
            max_staleness: Most versions that a group may lie behind it; groups that lie further are stale from now on.
            pipeline: Version of the pipeline of operators whose overlays the batch is read with.
            generation: Of this trainer.
            least: A choice of fewer groups is no claim: the step waits for others, and what is stale is so all the same.

        Returns:
            The claim; null where there were too few groups for one.

        Raises:
            LostClaimError: Another trainer took over.
        """
        failpoint("claim.before")
        with self._database.write() as connection:
            require_generation(connection, generation)
            claim = _claim(connection, step)
            if claim is None:
                num_stale = _let_go_stale(connection, version - max_staleness, step)
                choice = choose(Candidates(connection))
                if len(choice.groups) < least:
                    return None
                behind = Counter(version - group.lowest_version for group in choice.groups)
                snapshot = {
                    "sequence": current_sequence(connection),
                    "pipeline": pipeline,
                    "staleness": max(behind, default=0),
                    "behind": {str(versions): groups for versions, groups in sorted(behind.items())},
                }
                left_out = {**choice.left_out, **({"stale": num_stale} if num_stale else {})}
                claim = Claim(step, tuple(group.group_id for group in choice.groups), snapshot, left_out)
                _take(connection, step, choice)
                values = {"groups": json.dumps(claim.group_ids), "snapshot": json.dumps(snapshot), "left_out": json.dumps(left_out)}
                connection.execute(insert(schema.claims).values(step=step, **values, generation=generation, created_at=now(connection)))
        failpoint("claim.after")
        return claim

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
            for some in in_parts(trained):
                first = table.c.group_id.in_(some) & table.c.trained_step.is_(None)
                connection.execute(update(table).where(first).values(status="trained", trained_step=row.step))
            for group_id, reason in left_out.items():
                ready = (table.c.group_id == group_id) & (table.c.status == "ready")
                connection.execute(update(table).where(ready).values(status="dropped", reason=reason, queue=None))
        failpoint("step.after")

    def last_committed(self) -> int:
        """The last step that was committed; 0 before the first one."""
        with self._database.read() as connection:
            return last_committed(connection)

    def num_candidates(self, most: int) -> int:
        """How many groups wait for training, as far as to a number: the choice of a step may pass some of them over."""
        with self._database.read() as connection:
            return len(connection.execute(_WAITING, {"most": most}).all())

    def steps(self, up_to: int | None = None) -> list[StepRow]:
        """The committed steps in order, up to and with a number."""
        query = select(*[schema.steps.c[name] for name in StepRow.__slots__]).order_by(schema.steps.c.step)
        if up_to is not None:
            query = query.where(schema.steps.c.step <= up_to)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [StepRow(**{**row, "metrics": json.loads(row["metrics"])}) for row in rows]


def _claim(connection: Connection, step: int) -> Claim | None:
    row = connection.execute(select(schema.claims).where(schema.claims.c.step == step)).mappings().first()
    if row is None:
        return None
    return Claim(step, tuple(json.loads(row["groups"])), json.loads(row["snapshot"]), json.loads(row["left_out"]))


def _let_go_stale(connection: Connection, oldest_version: int, step: int) -> int:
    """Groups that are too old for this step, and so for every later one: those that were never trained are stale."""
    table = schema.groups
    status, reason = table.c.status, table.c.reason
    values = {
        "queue": None,
        "status": case((status == "ready", "stale"), else_=status),
        "reason": case((status == "ready", f"older than step {step} allows"), else_=reason),
    }
    too_old = (
        text("queue = 'training'") & table.c.source.in_([source.value for source in Source]) & (table.c.lowest_version < oldest_version)
    )
    return connection.execute(update(table).where(too_old).values(values)).rowcount


def _take(connection: Connection, step: int, choice: Choice) -> None:
    table = schema.groups.c
    once = [{"id": group.group_id} for group in choice.groups if group.group_id not in choice.reuse]
    again = [{"id": group_id, "to": reuse.priority, "from": reuse.again_from} for group_id, reuse in choice.reuse.items()]
    mine = update(schema.groups).where(table.group_id == bindparam("id")).values(claimed_step=step, uses=table.uses + 1)
    if once:
        connection.execute(mine.values(queue=None), once)
    if again:
        connection.execute(mine.values(priority=bindparam("to"), again_from=bindparam("from")), again)
