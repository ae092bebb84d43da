"""Where the wall time of a run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

WORK = ("rollout", "wait", "train", "evaluate", "checkpoint")
"""Generation and scoring, or waiting for those who do it, training, evaluation, checkpointing; whatever else passes is orchestration."""


class Timeline:
    """Records spans of work since this process began, in seconds."""

    def __init__(self) -> None:
        self._spans: list[tuple[str, float, float]] = []
        self._marks: dict[str, float] = {}
        self.startup_s = 0.0
        """From the start of the process until the run was open: imports, the Prefect server, the model."""

    @contextmanager
    def span(self, kind: str) -> Iterator[None]:
        """Record how long the block takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spans.append((kind, began, time.monotonic()))

    def mark_ready(self) -> None:
        self.startup_s = time.time() - psutil.Process().create_time()

    def mark_first_lease(self) -> None:
        self._marks.setdefault("first_lease", time.monotonic())

    def mark_commit(self) -> None:
        self._marks["last_commit"] = time.monotonic()

    def last(self, kind: str) -> float:
        """Length of the newest span of a kind; 0 if there is none."""
        return next((end - began for name, began, end in reversed(self._spans) if name == kind), 0.0)

    def total(self, kind: str) -> float:
        return sum(end - began for name, began, end in self._spans if name == kind)

    @property
    def train_wall_s(self) -> float:
        """From the first lease to the last commit, of this process."""
        if "first_lease" not in self._marks or "last_commit" not in self._marks:
            return 0.0
        return self._marks["last_commit"] - self._marks["first_lease"]

    @property
    def orchestration_frac(self) -> float:
        """The share of `train_wall_s` that is none of `WORK`."""
        if not self.train_wall_s:
            return 0.0
        first, last = self._marks["first_lease"], self._marks["last_commit"]
        worked = sum(max(0.0, min(end, last) - max(began, first)) for kind, began, end in self._spans if kind in WORK)
        return max(0.0, 1.0 - worked / self.train_wall_s)
