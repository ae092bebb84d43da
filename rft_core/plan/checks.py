"""Combinations of keys that can't work, refused by name."""

import os
from pathlib import Path

from rft_core.algorithms import Needs, algorithms
from rft_core.buffer import check_condition, check_places, selectors
from rft_core.config import ExplorerConfig, RunConfig
from rft_core.engines import engines
from rft_core.environments import environments
from rft_core.errors import ConfigError, QueryError
from rft_core.operators.apply import build_operators
from rft_core.plan.facts import with_changes
from rft_core.rewards import rewards


def check_extensions(config: RunConfig) -> None:
    """Refuse what no extension has: names, and arguments of those that are there."""
    held_out = config.evaluation.environment
    if held_out is not None:
        environments.configure(held_out.name, held_out.args, "evaluation.environment")
    for registry, spec, key in (
        (environments, config.rollout.environment, "rollout.environment"),
        (engines, config.rollout.engine, "rollout.engine"),
        (algorithms, config.algorithm, "algorithm"),
    ):
        registry.configure(spec.name, spec.args, key)
    for index, reward in enumerate(config.rewards):
        rewards.configure(reward.name, reward.args, f"rewards.{index}")


def check_combinations(config: RunConfig, needs: Needs) -> None:
    """Refuse keys that can't work beside each other, or with what the algorithm needs."""
    rollout, trainer = config.rollout, config.trainer
    name = config.algorithm.name
    if rollout.group_size < needs.min_group_size:
        raise ConfigError("rollout.group_size", rollout.group_size, f"{name} compares attempts of a group: at least {needs.min_group_size}")
    if needs.rewards and not config.rewards:
        raise ConfigError("rewards", [], f"{name} learns from rewards: name at least one of {', '.join(rewards.names())}")
    if not needs.rollout and rollout.environment.name != "expert":
        raise ConfigError("rollout.environment.name", rollout.environment.name, f"{name} learns from expert rows: `expert` is right")
    if needs.rollout and rollout.environment.name == "expert":
        raise ConfigError("rollout.environment.name", "expert", f"{name} learns from what the policy samples: `single_turn` is right")
    if needs.rollout and rollout.temperature == 0:
        raise ConfigError("rollout.temperature", 0, "greedy attempts at a task are all the same: above 0 is right, 1 is usual")
    mini = trainer.mini_batch_groups
    if mini is not None and rollout.batch_groups % mini:
        raise ConfigError(
            "trainer.mini_batch_groups",
            mini,
            f"mini-batches hold whole groups of equal number: a divisor of rollout.batch_groups {rollout.batch_groups}",
        )
    _check_mode(config)
    if config.sync.method == "shared" and config.sync.interval != 1:
        raise ConfigError("sync.interval", config.sync.interval, "a shared module is always the newest: 1 with sync.method shared")
    if config.evaluation.every and config.evaluation.every % config.sync.interval:
        raise ConfigError(
            "evaluation.every",
            config.evaluation.every,
            f"evaluations see synced weights: a multiple of sync.interval {config.sync.interval}",
        )


def _check_mode(config: RunConfig) -> None:
    """Refuse what can't be in the recipe's mode."""
    mode, rollout = config.mode, config.rollout
    if mode != "sync" and config.sync.method == "shared":
        raise ConfigError(
            "sync.method", "shared", f"with mode {mode} the trainer moves the weights while others sample: `checkpoint` is right"
        )
    if mode == "sync" and rollout.short_batch == "wait":
        raise ConfigError("rollout.short_batch", "wait", "in mode sync nobody goes on trying tasks: `train_partial`, `top_up` or `skip`")
    if mode != "sync" and rollout.short_batch not in (None, "wait"):
        raise ConfigError("rollout.short_batch", rollout.short_batch, f"mode {mode} waits, since others still come: leave it out")
    if mode == "sync" and rollout.at_once is not None:
        raise ConfigError("rollout.at_once", rollout.at_once, "mode sync tries a whole batch at once: leave it out")
    if mode != "async" and config.explorers != (ExplorerConfig(),):
        raise ConfigError("explorers", len(config.explorers), f"mode {mode} explores in the trainer's process: `mode: async` is right")
    for index, explorers in enumerate(config.explorers):
        _check_explorer(config, index, explorers)


def _check_explorer(config: RunConfig, index: int, explorers: ExplorerConfig) -> None:
    try:
        rollout = with_changes(config, explorers.rollout).rollout
    except ConfigError as error:
        raise ConfigError(f"explorers.{index}.{error.key}", error.value, error.remedy) from None
    engines.configure(rollout.engine.name, rollout.engine.args, f"explorers.{index}.rollout.engine")
    environments.configure(rollout.environment.name, rollout.environment.args, f"explorers.{index}.rollout.environment")


def check_operators(config: RunConfig) -> None:
    """Build every operator, since some refuse a value only then; without rewards none may look at them."""
    for index, named in enumerate(build_operators(config.operators, config.rollout.max_tokens)):
        if not config.rewards and getattr(named.operator, "needs_rewards", False):
            raise ConfigError(f"operators.{index}.name", named.name, "it looks at rewards, and this recipe has none: leave it out")


def check_table(config: RunConfig) -> None:
    """Refuse places of the table, a selection, or a bound on staleness that can't work."""
    check_places(config.table)
    spec = config.selection
    selectors.configure(spec.name, spec.args, "selection")
    if spec.where is not None:
        try:
            check_condition(spec.where)
        except QueryError as error:
            raise ConfigError("selection.where", spec.where, error.found) from None
    staleness = config.sync.max_staleness
    if staleness is not None and staleness < config.sync.interval - 1:
        least = f"rollouts are up to interval - 1 = {config.sync.interval - 1} versions old: at least that"
        raise ConfigError("sync.max_staleness", staleness, least)


def check_run_folder(config: RunConfig) -> None:
    """Refuse a place for the run that can't hold it."""
    folder = Path(config.runs_dir)
    for parent in (folder / config.name, folder, *folder.parents):
        if parent.exists():
            if not parent.is_dir():
                raise ConfigError("runs_dir", config.runs_dir, f"{parent} is a file, a run needs a folder there")
            if not os.access(parent, os.W_OK):
                raise ConfigError("runs_dir", config.runs_dir, f"{parent} must be a folder that can be written to")
            return
