"""Explorers: lease tasks, and append the attempts that their names alone decide."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from random import Random

from benchmarks.torture.journal import Said
from benchmarks.torture.place import LEASE_S, Checkpoint
from benchmarks.torture.role import Role
from rft_core.catalog import Lease, heartbeat
from rft_core.types import Experience, StopReason, digest

NUM_TASKS = 97
STEPS_OF_ROUND = 6
"""Leases are for the first step of a round, so that what expires is issued again before the round is over."""
GIVES_UP_FRAC = 0.4
"""Successors that take back what the killed one held, and begin anew; the others go on with it."""
HANGS_FRAC = 0.03
"""Rollouts that take longer than their leases, without a heartbeat."""
REJECTED_FRAC = 0.06
FAILS = "ScriptedError: it was to fail"


class Explorer(Role):
    """One of several that share a task set."""

    def begin(self, unfinished: Sequence[Said]) -> None:
        """Give up what the predecessor held, or append it."""
        super().begin(unfinished)
        if self.rng.random() < GIVES_UP_FRAC:
            self.table.catalog.leases.take_back(self.name, "the process that held it ended")
            return
        for said in unfinished:
            self._append([Lease(**lease) for lease in said["leases"]])
        held = self.table.catalog.leases.open(self._step(), self.name)
        if held:
            self._append(held)

    def round(self) -> bool:
        """Lease some tasks, try them, and append what came of it."""
        fresh, leases = self.rng.randint(1, 3), self.table.catalog.leases
        issued = leases.issue(self._step(), fresh, self.name, lambda p: f"task-{p % NUM_TASKS}", None, LEASE_S, most_again=fresh)
        self.line.say("leased", leases=[lease.lease_id for lease in issued])
        if self.rng.random() < HANGS_FRAC:
            time.sleep(1.2 * LEASE_S)
            self._append(issued)
        else:
            with heartbeat(partial(leases.renew, self.name, LEASE_S), LEASE_S / 4):
                time.sleep(self.rng.uniform(0.0, 0.1))
                self._append(issued)
        return True

    def _step(self) -> int:
        step = Checkpoint.read(self.place).step
        return step - step % STEPS_OF_ROUND + 1

    def _append(self, leases: Sequence[Lease]) -> None:
        key = f"rollout-{digest(*(lease.lease_id for lease in leases))}"
        groups = {digest("group", lease.lease_id): attempts(lease, self.name) for lease in leases}
        rejected = "too many attempts failed" if Random(key).random() < REJECTED_FRAC else None
        self.line.say("appending", keys=[key], leases=[asdict(lease) for lease in leases])
        self.table.store.append(key, [row for group in groups.values() for row in group], self.name, leases[0].step, rejected)
        self.line.say(
            "appended",
            key=key,
            groups={group_id: digest_of(group) for group_id, group in groups.items()},
            rows={group_id: [row.experience_id for row in group] for group_id, group in groups.items()},
        )


def attempts(lease: Lease, explorer: str) -> list[Experience]:
    """The rows of a group: the same each time that the same lease is tried."""
    rng = Random(lease.lease_id)
    fate, rows = rng.random(), list[Experience]()
    for attempt in range(rng.randint(2, 4)):
        failed = fate < 0.05 or rng.random() < 0.1
        reward = None if failed or fate < 0.3 else rng.choice((0.0, 0.25, 1.0))
        rows += [_row(lease, explorer, attempt, turn, reward, failed) for turn in range(rng.choice((1, 1, 2)))]
    return rows


def digest_of(rows: Iterable[Experience]) -> str:
    """A digest of everything that rows say."""
    return digest("rows", *(sorted(asdict(row).items()) for row in rows))


def _row(lease: Lease, explorer: str, attempt: int, turn: int, reward: float | None, failed: bool) -> Experience:
    group_id = digest("group", lease.lease_id)
    length = 4 + (lease.position + attempt) % 5
    return Experience(
        experience_id=digest("experience", group_id, attempt, turn),
        group_id=group_id,
        task_id=lease.task_id,
        lease_id=lease.lease_id,
        attempt=attempt,
        turn_index=turn,
        explorer=explorer,
        policy_version=lease.step - 1,
        policy_version_end=lease.step - 1,
        tokens=tuple(range(length)),
        action_mask=(False, False, *[True] * (length - 2)),
        logprobs=(0.0, 0.0, *[-0.5] * (length - 2)),
        temperature=1.0,
        prompt_length=2,
        prompt_text=f"{lease.task_id}?",
        response_text=f"{attempt}.{turn}",
        reward=reward,
        stop_reason=None if failed else StopReason.EOS,
        error=FAILS if failed else None,
        info={"slot": lease.slot},
        created_at=float(lease.position),
    )
