"""The load of the simulation, the same for every arm: how long groups take, and the least time in which it can be done.

Standard library alone, since peers drive it in environments of their own.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import count
from math import exp, log
from random import Random
from typing import Any


@dataclass(frozen=True)
class Load:
    """What is to be done: so many steps, each of a batch of groups; times are in virtual seconds."""

    seed: int
    steps: int = 200
    batch: int = 8
    """Groups in a step."""
    workers: int = 8
    """Groups that are tried at a time, by all explorers together."""
    bound: int = 4
    """Most versions that a trained group may lie behind, where an arm can keep to a bound."""
    median_s: float = 1.0
    sigma: float = 0.8
    """Of the logarithm of a group's latency."""
    stuck_frac: float = 0.01
    """Attempts that never return."""
    deadline_s: float = 20.0
    """After which an attempt is given up."""

    def latency(self, position: int, attempt: int = 0) -> float | None:
        """Seconds until an attempt at the task at a position returns; null if it never does."""
        rng = Random(f"{self.seed}/{position}/{attempt}")
        if rng.random() < self.stuck_frac:
            return None
        latency = exp(rng.gauss(log(self.median_s), self.sigma))
        return latency if latency < self.deadline_s else None

    async def attempt(self, position: int, attempt: int = 0) -> bool:
        """Take as long as an attempt takes, at most to its deadline; whether it returned."""
        latency = self.latency(position, attempt)
        await asyncio.sleep(self.deadline_s if latency is None else latency)
        return latency is not None

    @cached_property
    def rollout_s(self) -> float:
        """What the groups of all steps take one after the other: the first tasks, of which as many return as are to be trained.

        An attempt that never returns counts as its deadline.
        """
        total, returned = 0.0, 0
        for position in count():
            if returned == self.steps * self.batch:
                break
            latency = self.latency(position)
            total += self.deadline_s if latency is None else latency
            returned += latency is not None
        return total

    @property
    def train_s(self) -> float:
        """How long a step's training takes: as long as a batch takes the workers on average, so that both sides are equally busy."""
        return self.rollout_s / self.workers / self.steps

    @property
    def least_s(self) -> float:
        """No schedule can be faster: neither side can do its work in less."""
        return max(self.rollout_s / self.workers, self.steps * self.train_s)


@dataclass
class Outcome:
    """What one arm made of a load."""

    wall_s: float
    """Until the last step was committed."""
    trained: Mapping[int, int]
    """How many groups were trained that lay so many versions behind."""
    begun: int
    """Groups that were handed out."""
    stale: int
    """Groups that came back, and were too old for training."""
    failed: int = 0
    """Groups given up at their deadline."""
    lost: int = 0
    """Groups of which nobody knows what became."""
    duplicated: int = 0
    """Trainings of a task's group beyond its first."""
    short: int = 0
    """Steps that were trained on less than a whole batch."""
    more: dict[str, Any] = field(default_factory=dict)


def figures(load: Load, outcome: Outcome) -> dict[str, Any]:
    """What is said of one arm on one load."""
    return {
        "wall_s": round(outcome.wall_s, 2),
        "wall_over_bound": round(outcome.wall_s / load.least_s, 4),
        "trainer_idle_frac": round(1 - load.steps * load.train_s / outcome.wall_s, 4),
        "staleness": {str(behind): groups for behind, groups in sorted(outcome.trained.items())},
        "max_staleness_seen": max(outcome.trained),
        "stale_frac": round(outcome.stale / outcome.begun, 4),
        **{name: value for name, value in asdict(outcome).items() if name not in ("wall_s", "trained", "more")},
        **outcome.more,
    }


@dataclass
class Ledger:
    """Counts what a scheduler that keeps no ledger of its own hands out, gets back and trains."""

    load: Load
    begun: int = 0
    stale: int = 0
    failed: int = 0
    trained: Counter[int] = field(default_factory=Counter)
    positions: Counter[int] = field(default_factory=Counter)
    short: int = 0

    def train(self, step: int, groups: list[tuple[int, int]]) -> None:
        """A step trains groups, each given by the position of its task and the version that it was begun with."""
        self.short += len(groups) < self.load.batch
        self.trained.update(step - 1 - version for _, version in groups)
        self.positions.update(position for position, _ in groups)

    def outcome(self, wall_s: float, waiting: int) -> Outcome:
        """What came of it, with so many groups in flight or ready at the end."""
        num_trained = sum(self.trained.values())
        return Outcome(
            wall_s,
            dict(self.trained),
            self.begun,
            self.stale,
            self.failed,
            lost=self.begun - num_trained - self.stale - self.failed - waiting,
            duplicated=num_trained - len(self.positions),
            short=self.short,
        )
