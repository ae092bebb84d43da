"""Tasks of a reasoning-gym generator."""

import json
import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any

from rft_core.config import TaskSetConfig
from rft_core.errors import DataError
from rft_core.taskset.rows import normalised, one_line
from rft_core.types import digest

GYM = "reasoning-gym:"
GYM_FACT = "reasoning_gym"
"""The fact of a task that the generator's own scorer needs; see `rft_core.rewards.reasoning_gym`."""

UNSTABLE = frozenset({"isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder"})
"""Generators that iterate over sets of strings: with random hashes they make other tasks in each process (seen in 0.1.25)."""

_PROBED = 4
"""Tasks that are made when a set is opened, so that its digest tells another generator."""


class GymRows:
    """Tasks made by a generator, each when it is first asked for.

    Args:
        config: `reasoning-gym:NAME`, with `limit`; `args` go to the generator.
        seed: What the generator is seeded by, unless `args` say so.

    Raises:
        DataError: There is no such generator, it refuses its arguments, or it would make other tasks in the next process.
    """

    def __init__(self, config: TaskSetConfig, seed: int) -> None:
        if config.limit is None or "size" in config.args:
            raise DataError(f"{config.source} has no end", "set `limit`, not `args.size`, to the number of tasks to make")
        self._name = config.source.removeprefix(GYM)
        # Some generators seed NumPy's old random state, which takes 32 bits.
        self._args = {"seed": seed % 2**31, **config.args}
        self._entries = _generator(self._name, {**self._args, "size": config.limit})
        self._made: dict[int, dict[str, Any]] = {}
        first = [json.dumps(self[index], sort_keys=True) for index in range(min(_PROBED, len(self)))]
        self.content = digest(self._name, version("reasoning-gym"), json.dumps(self._args, sort_keys=True), *first)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index not in self._made:
            self._made[index] = self._row(dict(self._entries[index]))
        return self._made[index]

    def _row(self, entry: dict[str, Any]) -> dict[str, Any]:
        scoring = {"name": self._name, "args": self._args, "entry": tagged(entry)}
        return {**normalised(entry, f"a task of {GYM}{self._name}"), GYM_FACT: scoring}


def tagged(value: Any) -> Any:
    """A value of an entry as JSON that tells tuples from lists: some of the scorers compare them.

    Example:
        >>> tagged({"grid": ((1, 2), [3])})
        {'grid': {'()': [{'()': [1, 2]}, [3]]}}
    """
    if isinstance(value, tuple):
        return {"()": [tagged(item) for item in value]}
    if isinstance(value, list):
        return [tagged(item) for item in value]
    if isinstance(value, dict):
        return {str(key): tagged(item) for key, item in value.items()}
    return normalised(value, "a task")


def untagged(value: Any) -> Any:
    """The value that `tagged` was given.

    Example:
        >>> untagged({"grid": {"()": [{"()": [1, 2]}, [3]]}})
        {'grid': ((1, 2), [3])}
    """
    if isinstance(value, list):
        return [untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"()"}:
        return tuple(untagged(item) for item in value["()"])
    return {key: untagged(item) for key, item in value.items()}


def _generator(name: str, args: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
    try:
        import reasoning_gym  # noqa: PLC0415 - the heavy half
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415 - the heavy half
    except ImportError as error:
        raise DataError(f"{GYM}{name} needs the package `reasoning-gym` ({error})", "pip install reasoning-gym") from None
    if name not in DATASETS:
        near = ", ".join(get_close_matches(name, DATASETS, n=5, cutoff=0.3))
        raise DataError(f"reasoning-gym has no set {name!r}", f"it has {len(DATASETS)}, near this name: {near or 'none'}")
    # Any PYTHONHASHSEED but `random` makes hashes repeat; `sys.flags` tells only whether it is 0.
    if name in UNSTABLE and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise DataError(f"{GYM}{name} makes other tasks in each process", "set PYTHONHASHSEED=0 where the run is started")
    try:
        generator: Sequence[Mapping[str, Any]] = reasoning_gym.create_dataset(name, **args)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"{GYM}{name} refuses its arguments {args} ({one_line(error)})", "correct `args`") from None
    return generator
