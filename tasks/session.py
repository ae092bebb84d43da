"""The live parts of a run in this process: engine, trainer, stores. Prefect tasks find them here by the run's id."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar
from uuid import UUID

from rft_core.algorithms import Algorithm
from rft_core.buffer import ExperienceStore, Questions, Table
from rft_core.catalog import Catalog
from rft_core.config import RunConfig
from rft_core.engines import Engine
from rft_core.errors import TidemillError
from rft_core.explorer import Explorer, Sampling
from rft_core.monitor import Monitor
from rft_core.operators.apply import NamedOperator
from rft_core.plan import is_due, last_step
from rft_core.run_dir import RunDir
from rft_core.taskset import TaskSet
from rft_core.trainer.policy import Policy
from rft_core.trainer.trainer import Trainer
from rft_core.weights import WeightStore
from tasks.explore import Exploration
from tasks.progress import SILENT, Progress
from tasks.timeline import Timeline

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Session:
    """One run, live in this process. Made by `tasks.opening.opened`."""

    config: RunConfig
    run_dir: RunDir
    generation: int
    """Of this process as the run's trainer; once another one takes over, this one can't commit."""
    table: Table
    """The experience table."""
    weights: WeightStore
    base_folder: Path
    """The base model: version 0."""
    policy: Policy
    algorithm: Algorithm
    trainer: Trainer
    engine: Engine
    explorer: Explorer
    operators: tuple[NamedOperator, ...]
    pipeline: str | None
    """Version of the pipeline of operators; null where the recipe has none."""
    tasks: TaskSet
    held_out: TaskSet | None
    monitor: Monitor
    computer: ThreadPoolExecutor
    """The one thread in which everything that computes runs, so that the event loop stays alive."""
    first_step: int = 1
    """The step to do next: the one after the newest checkpoint."""
    timeline: Timeline = field(default_factory=Timeline)
    progress: Progress = SILENT
    ends_at: int | None = None
    """The step that leased the task set's last task, which is the run's last step; null while there are more."""
    figures: dict[int, dict[str, float]] = field(default_factory=dict)
    """Metrics of the steps that are in the making."""
    started: dict[int, float] = field(default_factory=dict)
    """When each of them began, in seconds since the epoch."""
    batches: dict[int, tuple[Sequence[str], Mapping[str, str]]] = field(default_factory=dict)
    """For each of them the groups that it learned from, and those left out with the reason."""
    checkpoints: dict[int, str] = field(default_factory=dict)
    """URI of each step's checkpoint, from its writing to its step row."""

    exported: int = -1
    """The last step that this process brought to the monitor; everything before it is told again after a start."""
    exploration: Exploration | None = None
    """The explorer that goes on beside the trainer in this process, in mode `one_step`."""
    progress_artifact: UUID | None = None
    """The run's progress bar in the Prefect UI, once it has one."""

    @property
    def catalog(self) -> Catalog:
        return self.table.catalog

    @property
    def store(self) -> ExperienceStore:
        return self.table.store

    def questions(self) -> Questions:
        """The table as it is now, to be asked in SQL."""
        return Questions(self.table.storage, self.catalog, self.pipeline, self.config.labels.combine)

    @property
    def run_id(self) -> str:
        return self.run_dir.run_id

    @property
    def end(self) -> int | None:
        """The first position of the task set that is not leased; null if there is no end."""
        return None if self.config.epochs is None else self.config.epochs * len(self.tasks)

    @property
    def last_step(self) -> int:
        planned = last_step(self.config, len(self.tasks))
        return planned if self.ends_at is None else min(planned, self.ends_at)

    @property
    def sampling(self) -> Sampling:
        rollout = self.config.rollout
        return Sampling(rollout.temperature, rollout.max_tokens, rollout.timeout_s)

    def steps(self) -> Iterator[int]:
        """The numbers of the steps that are to be done, until the task set is exhausted."""
        step = self.first_step
        while step <= self.last_step:
            self.started[step] = time.time()
            yield step
            step += 1
        if self.ends_at is not None:
            self.progress.note(f"the task set is exhausted: the run ends after step {self.ends_at}")

    def checkpoint_due(self, step: int) -> bool:
        return is_due(step, self.config.checkpoint.every, self.last_step)

    def evaluation_due(self, step: int) -> bool:
        return step == 0 or is_due(step, self.config.evaluation.every, self.last_step)

    async def compute(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the computing thread."""
        return await asyncio.get_running_loop().run_in_executor(self.computer, lambda: function(*args, **kwargs))

    @contextmanager
    def doing(self, kind: str, step: int) -> Iterator[None]:
        """Say what the run does, and record how long it takes."""
        self.progress.stage(step, kind)
        with self.timeline.span(kind):
            yield

    def measured(self, step: int) -> dict[str, float]:
        """The metrics of a step so far."""
        return self.figures.setdefault(step, {})


live: dict[str, Session] = {}
"""The runs that are open in this process, by id."""


def get(run: str) -> Session:
    """The session of a run in this process.

    Raises:
        TidemillError: The run is not open here.
    """
    if run not in live:
        raise TidemillError(f"run {run} is not open in this process", "tasks run inside a flow that opened it")
    return live[run]
