"""The trainer: shapes what waits, claims a batch, learns it, checkpoints; killed, it learns the same batches again."""

import time
from collections.abc import Sequence
from itertools import groupby, islice
from random import Random

from benchmarks.torture.explorer import digest_of
from benchmarks.torture.journal import Said
from benchmarks.torture.place import LEASE_S, PIPELINE, Checkpoint
from benchmarks.torture.role import Role
from rft_core.buffer import Shaped, StoredGroup, Wanted, chooser
from rft_core.catalog import Candidates, Choice, Claim, StepRow, Version
from rft_core.errors import RunError
from rft_core.failpoints import failpoint
from rft_core.processes import this_process
from rft_core.types import digest

BATCH = 8
SHAPED_AT_ONCE = 4
"""Appends that are shaped before a step: so many bring about a batch."""
CHECKPOINT_EVERY = 2
MAX_STALENESS = 12
TAKE_OVER_S = 20.0
NO_SIGNAL = "no signal"


class TooFewWait(Exception):
    """Too few groups wait for training: no claim is made."""


class Trainer(Role):
    """The run's trainer."""

    def begin(self, unfinished: Sequence[Said]) -> None:
        """Take the run over, and go on from the newest checkpoint, whose step may not be committed yet."""
        self._catalog = self.table.catalog
        self._store = self.table.store
        self._generation = self._take_over()
        super().begin(unfinished)
        self._at = Checkpoint.read(self.place)
        if self._at.step:
            self._finish(self._at)

    def round(self) -> bool:
        """Do the next step; false if nothing waits for it."""
        return self.step(least=1)

    def step(self, least: int) -> bool:
        """Do the next step, again where it has a claim already; false if fewer groups than these wait for it."""
        step = self._at.step + 1
        self._catalog.trainers.renew(self._generation, LEASE_S)
        try:
            claim = self._catalog.claims.find(step) or self._claim(step, least)
        except TooFewWait:
            return False
        self._at = self._learn(claim, self._read(claim))
        failpoint("train.after")
        if step % CHECKPOINT_EVERY == 0:
            self.checkpoint()
        self._finish(self._at)
        return True

    def checkpoint(self) -> None:
        """Keep what was learned so far."""
        self._at.write(self.place)
        failpoint("checkpoint.renamed")
        self.line.say("checkpointed", step=self._at.step)

    def read_again(self) -> None:
        """Read every batch again that a restart would have to read, as it would."""
        step = Checkpoint.read(self.place).step + 1
        while claim := self._catalog.claims.find(step):
            self._read(claim)
            step += 1

    def _take_over(self) -> int:
        """Become the trainer, once the one before is dead or its lease over."""
        give_up = time.monotonic() + TAKE_OVER_S
        while True:
            try:
                return self._catalog.trainers.take_over(this_process(), LEASE_S)
            except RunError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(LEASE_S / 10)

    def _shape(self, segment: str, group_ids: list[str]) -> None:
        read_at = self._catalog.segments.snapshot()
        groups = self._store.groups(group_ids, at=read_at)
        shaped = {
            group.group_id: [
                Shaped(row.experience_id, doubled(group.reward_of(attempt))) for attempt in group.attempts() for row in attempt
            ]
            for group in groups
        }
        dropped = {group_id: "doubled: not wanted" for group_id in shaped if Random(group_id).random() < 0.1}
        self._store.overlay(segment, shaped, [{"name": PIPELINE, "groups": len(shaped)}], dropped, read_at)

    def _claim(self, step: int, least: int) -> Claim:
        self._catalog.leases.expire_overdue()
        self._store.settle()
        for segment, group_ids in islice(self._catalog.segments.to_shape().items(), SHAPED_AT_ONCE):
            self._shape(segment, group_ids)
        choose = chooser(self.table.selector, Wanted(step, BATCH), None, skip_short=False)

        def choose_enough(candidates: Candidates) -> Choice:
            choice = choose(candidates)
            if len(choice.groups) < least:
                raise TooFewWait
            return choice

        return self._catalog.claims.make(step, choose_enough, step - 1, MAX_STALENESS, PIPELINE, self._generation)

    def _read(self, claim: Claim) -> list[StoredGroup]:
        """Read the batch, and say what was read: whole groups, as they were shaped by all that was said of them until then."""
        groups = self._store.groups(claim.group_ids, claim.snapshot["pipeline"], claim.snapshot["sequence"])
        for group in groups:
            for attempt in group.attempts():
                for row in attempt:
                    shaped = group.shaped.get(row.experience_id)
                    if shaped is None:
                        self.line.say("lost", what=f"step {claim.step} reads experience {row.experience_id} without its overlay")
                    elif shaped.shaped_reward != doubled(group.reward_of(attempt)):
                        self.line.say("lost", what=f"step {claim.step} trains on {row.experience_id} as it was before its last label")
        said = digest(*((digest_of(g.rows), sorted(g.labelled.items()), sorted(map(repr, g.shaped.values()))) for g in groups))
        self.line.say("claimed", step=claim.step, groups=list(claim.group_ids), digest=said)
        return groups

    def _learn(self, claim: Claim, groups: Sequence[StoredGroup]) -> Checkpoint:
        learned = digest(self._at.learned, claim.step, *(digest_of(group.rows) for group in groups))
        flat = {group.group_id for group in groups if len(list(groupby(map(group.reward_of, group.attempts())))) == 1}
        trained = tuple(group.group_id for group in groups if group.group_id not in flat)
        return Checkpoint(claim.step, learned, trained, tuple((group_id, NO_SIGNAL) for group_id in sorted(flat)))

    def _finish(self, done: Checkpoint) -> None:
        """Publish what a step learned, and commit it; both may have been done before."""
        self._catalog.versions.record(Version(done.step, done.step, None, done.learned), self._generation)
        failpoint("publish.after")
        figure = float(int(done.learned[:8], 16))
        status = "trained" if done.trained else "skipped"
        row = StepRow(done.step, status, done.step, {"loss": figure}, None, 0.0, 0.0)
        self._catalog.claims.commit_step(row, done.trained, dict(done.left_out), self._generation)
        self.line.say("committed", step=done.step, figure=figure)


def doubled(reward: float | None) -> float | None:
    """What the pipeline makes of a reward."""
    return None if reward is None else 2 * reward
