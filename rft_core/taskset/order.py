"""The order in which a run is given its tasks.

A position is the whole cursor: `TaskSet.at(position)` is a pure function of the recipe, the seed and the rows, so a
run that is killed goes on from the number that it had reached. An epoch is one pass over the set; a shuffled set draws
another order in each.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rft_core.config import TaskSetConfig
from rft_core.errors import DataError
from rft_core.taskset.gym import GYM, GymRows
from rft_core.taskset.hub import HUB, cached_files, hub_rows
from rft_core.taskset.rows import make_task
from rft_core.taskset.tables import Rows, file_rows
from rft_core.types import Task, digest, seed_of


class TaskSet:
    """Tasks by index, and in the order in which a run is given them.

    Args:
        config: Where the rows come from and how they become prompts.
        rows: The rows; at least one.
        seed: Fixes the order of a shuffled set.
    """

    def __init__(self, config: TaskSetConfig, rows: Rows, seed: int) -> None:
        self.config = config
        self._rows = rows
        self._seed = seed
        self._order = lru_cache(maxsize=2)(self._draw_order)

    def __len__(self) -> int:
        """Tasks in one epoch; a row that is there twice counts twice."""
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """A digest of everything that fixes the tasks and their order; a run that is resumed must find the same one."""
        how = self.config.format.model_dump_json()
        return digest("taskset", self._rows.content, len(self), how, self.config.order, self._seed)

    def task(self, index: int) -> Task:
        """The task made of the row at `index`, from 0.

        Raises:
            DataError: The row lacks a field that a template names, or its chat turns are malformed.
        """
        return make_task(self._rows[index], self.config.format, f"{self.config.source} row {index + 1}")

    def epoch(self, position: int) -> int:
        """The pass over the set, from 0, that a position of the order belongs to."""
        return position // len(self)

    def at(self, position: int) -> Task:
        """The task at a position, from 0, of the order without end.

        Raises:
            DataError: As `task` does.
        """
        epoch, offset = divmod(position, len(self))
        return self.task(int(self._order(epoch)[offset]))

    def _draw_order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self.config.order == "sequential":
            return np.arange(len(self))
        # Raw bits are sorted because NumPy keeps the stream of a bit generator over its versions, but not that of `permutation`.
        bits = np.random.PCG64(seed_of("order", self._seed, epoch)).random_raw(len(self))
        return np.argsort(bits, kind="stable")


def open_taskset(config: TaskSetConfig, seed: int) -> TaskSet:
    """Open a task set. A Hugging Face set that is not in the local cache is downloaded.

    Args:
        config: A `.jsonl` or `.parquet` file, `hf:ID`, or `reasoning-gym:NAME`.
        seed: Fixes the order of a shuffled set, and which tasks a reasoning-gym generator makes: give a held-out set another one.

    Raises:
        DataError: The source can't be read, or holds no rows; one line.
    """
    if config.source.startswith(HUB):
        rows: Rows = hub_rows(config)
    elif config.source.startswith(GYM):
        rows = GymRows(config, seed)
    else:
        rows = file_rows(Path(config.source), config.limit)
    if len(rows) == 0:
        raise DataError(f"{config.source} holds no rows", "a task set needs at least one")
    return TaskSet(config, rows, seed)


def available_locally(config: TaskSetConfig) -> bool:
    """Whether `open_taskset` can do without network: always, but for a Hugging Face set that is not in the local cache.

    Imports nothing heavy and downloads nothing.
    """
    if not config.source.startswith(HUB):
        return True
    return Path(config.source.removeprefix(HUB)).is_dir() or bool(cached_files(config))
