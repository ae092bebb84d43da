"""What follows from a recipe alone: its last step, what is due when, how stale a group may be, its tasks."""

import math
from collections.abc import Mapping
from typing import Any

from rft_core.base_model import BaseModel
from rft_core.catalog import Admission
from rft_core.config import RunConfig, parse, set_key
from rft_core.errors import ConfigError
from rft_core.taskset import TaskSet, open_taskset
from rft_core.types import seed_of

_ALIKE = ("batch_groups", "group_size", "max_failed_frac", "short_batch", "max_refills")
"""Keys of `rollout` that all explorers of a run have in common."""


def last_step(config: RunConfig, num_tasks: int) -> int:
    """The number of the run's last step: `steps`, or as many as `epochs` give, whichever is less."""
    if config.epochs is None:
        return config.steps
    return min(config.steps, math.ceil(config.epochs * num_tasks / config.rollout.batch_groups))


def max_staleness(config: RunConfig) -> int:
    """Most versions that a trained group may lie behind the one that its step starts from."""
    wanted, interval = config.sync.max_staleness, config.sync.interval
    return {"sync": interval - 1, "one_step": interval, "async": 4 * interval}[config.mode] if wanted is None else wanted


def short_batch(config: RunConfig) -> str:
    """What becomes of a batch that operators and failures leave short."""
    return config.rollout.short_batch or ("train_partial" if config.mode == "sync" else "wait")


def admission(config: RunConfig) -> Admission:
    """How far explorers may run ahead of the trainer."""
    return Admission(config.rollout.batch_groups, max_staleness(config))


def with_changes(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """A run's recipe as one explorer follows it.

    Args:
        config: The recipe.
        changes: Other values for keys of its section `rollout`.

    Raises:
        ConfigError: A key is unknown, has a value that it can't have, or may not differ between explorers.
    """
    values = config.model_dump(mode="json")
    for key, value in changes.items():
        if key.split(".")[0] in _ALIKE:
            raise ConfigError(f"rollout.{key}", value, f"all explorers of a run have it in common: {getattr(config.rollout, key)} is right")
        set_key(values["rollout"], key, value)
    return parse(values)


def is_due(step: int, every: int | None, last: int) -> bool:
    """Whether something that happens every so many steps, and at the last one, happens at this one."""
    return step == last or (every is not None and step > 0 and step % every == 0)


def context_of(config: RunConfig, model: BaseModel) -> int:
    """Longest sequence, in tokens: `model.max_context`, or the model's own limit.

    Raises:
        ConfigError: The recipe asks for more than the model was made for, or the model does not say.
    """
    own = model.context()
    wanted = config.model.max_context
    if wanted is not None and own is not None and wanted > own:
        raise ConfigError("model.max_context", wanted, f"the model was made for at most {own} tokens")
    if wanted is None and own is None:
        raise ConfigError("model.max_context", None, "the model's config does not say its context: set it")
    return wanted or own or 0


def open_train(config: RunConfig) -> TaskSet:
    """The training tasks of a recipe."""
    return open_taskset(config.data.train, config.seed)


def open_held_out(config: RunConfig) -> TaskSet | None:
    """The held-out tasks of a recipe; what is generated from a seed has another one than the training tasks."""
    source = config.data.evaluation
    return open_taskset(source, seed_of(config.seed, "held out") % 2**31) if source else None
