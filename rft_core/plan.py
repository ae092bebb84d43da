"""What a run would do: every value that follows from its configuration, with the reason. Pure, without torch or network."""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from rft_core.algorithms import Needs, algorithms
from rft_core.base_model import BaseModel, locate
from rft_core.config import RunConfig, TaskSetConfig
from rft_core.engines import engines
from rft_core.environments import environments
from rft_core.errors import ConfigError, DataError, ModelError
from rft_core.monitor import require_address
from rft_core.operators.apply import build_operators
from rft_core.rewards import rewards
from rft_core.taskset import TaskSet, available_locally, open_taskset
from rft_core.tokens import Tokenizer
from rft_core.types import Task, seed_of

NUM_SAMPLES = 3
NUM_PROMPTS_CHECKED = 2000
"""Prompts that `rft plan` makes and measures; the engine checks every one when it is used."""


@dataclass(frozen=True, slots=True)
class Derived:
    """One value that follows from the recipe."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe, resolved."""

    config: RunConfig
    derived: tuple[Derived, ...]
    samples: tuple[str, ...]
    """Rendered prompts of the first tasks."""
    unchecked: tuple[str, ...]
    """What could not be looked at here, and why."""
    train: TaskSet | None = field(default=None, repr=False)
    """The training tasks, opened; null where they are not here."""
    held_out: TaskSet | None = field(default=None, repr=False)
    """The held-out tasks, opened; null where they are not here, or the recipe names none."""


@dataclass(slots=True)
class _Known:
    """What was found out about a recipe so far; null where it could not be looked at here."""

    config: RunConfig
    model: BaseModel
    needs: Needs
    """The algorithm's."""
    tokenizer: Tokenizer | None = None
    train: TaskSet | None = None
    held_out: TaskSet | None = None
    unchecked: list[str] = field(default_factory=list)


def resolve(config: RunConfig) -> Plan:
    """Check a recipe as a whole and work out what follows from it.

    Raises:
        ConfigError: Something can't work; names the key, the value and what would be right.
    """
    _check_extensions(config)
    needs = algorithms.build(config.algorithm.name, config.algorithm.args, "algorithm").needs
    _check_combinations(config, needs)
    _check_operators(config)
    _check_run_folder(config)
    require_address(config.monitor)
    known = _Known(config, _model(config), needs)
    known.tokenizer = _tokenizer(known)
    known.train = _tasks(known, "data.train", config.data.train, open_train)
    if config.data.evaluation:
        known.held_out = _tasks(known, "data.evaluation", config.data.evaluation, open_held_out)
    return Plan(config, tuple(_derived(known)), _samples(known), tuple(known.unchecked), known.train, known.held_out)


def open_train(config: RunConfig) -> TaskSet:
    """The training tasks of a recipe."""
    return open_taskset(config.data.train, config.seed)


def open_held_out(config: RunConfig) -> TaskSet | None:
    """The held-out tasks of a recipe; what is generated from a seed has another one than the training tasks."""
    source = config.data.evaluation
    return open_taskset(source, seed_of(config.seed, "held out") % 2**31) if source else None


def last_step(config: RunConfig, num_tasks: int) -> int:
    """The number of the run's last step: `steps`, or as many as `epochs` give, whichever is less."""
    if config.epochs is None:
        return config.steps
    return min(config.steps, math.ceil(config.epochs * num_tasks / config.rollout.batch_groups))


def is_due(step: int, every: int | None, last: int) -> bool:
    """Whether something that happens every so many steps, and at the last one, happens at this one."""
    return step == last or (every is not None and step > 0 and step % every == 0)


def _check_extensions(config: RunConfig) -> None:
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


def _check_combinations(config: RunConfig, needs: Needs) -> None:
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
    if config.sync.method == "shared" and config.sync.interval != 1:
        raise ConfigError("sync.interval", config.sync.interval, "a shared module is always the newest: 1 with sync.method shared")
    if config.evaluation.every and config.evaluation.every % config.sync.interval:
        raise ConfigError(
            "evaluation.every",
            config.evaluation.every,
            f"evaluations see synced weights: a multiple of sync.interval {config.sync.interval}",
        )


def _check_operators(config: RunConfig) -> None:
    """Build every operator, since some refuse a value only then; without rewards none may look at them."""
    for index, named in enumerate(build_operators(config.operators, config.rollout.max_tokens)):
        if not config.rewards and getattr(named.operator, "needs_rewards", False):
            raise ConfigError(f"operators.{index}.name", named.name, "it looks at rewards, and this recipe has none: leave it out")


def _check_run_folder(config: RunConfig) -> None:
    folder = Path(config.runs_dir)
    for parent in (folder / config.name, folder, *folder.parents):
        if parent.exists():
            if not parent.is_dir():
                raise ConfigError("runs_dir", config.runs_dir, f"{parent} is a file, a run needs a folder there")
            if not os.access(parent, os.W_OK):
                raise ConfigError("runs_dir", config.runs_dir, f"{parent} must be a folder that can be written to")
            return


def _model(config: RunConfig) -> BaseModel:
    try:
        return locate(config.model.path)
    except ModelError as error:
        raise ConfigError("model.path", config.model.path, f"{error.found.removeprefix('model.path: ')}: {error.remedy}") from None


def _tokenizer(known: _Known) -> Tokenizer | None:
    model = known.model
    if model.folder is None or not model.ready:
        why = "it is converted at the first run" if model.gguf_file else "it is downloaded at the first run"
        known.unchecked.append(f"model.path {model.name}: not checked, {why}")
        return None
    return Tokenizer(model.folder)


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


def _tasks(known: _Known, key: str, source: TaskSetConfig, opener: Callable[[RunConfig], TaskSet | None]) -> TaskSet | None:
    if not available_locally(source):
        known.unchecked.append(f"{key}.source {source.source}: not checked, it is not in the local cache")
        return None
    try:
        tasks = opener(known.config)
        if tasks is not None:
            _check_tasks(known, key, tasks, source)
    except DataError as error:
        raise ConfigError(f"{key}.source", source.source, str(error)) from None
    return tasks


def _check_tasks(known: _Known, key: str, tasks: TaskSet, source: TaskSetConfig) -> None:
    """Every task has the fields that something reads, and the first prompts can be made and leave room for an answer.

    Each row is decoded once, and only as many as there is something to look for.
    """
    fields = _fields_read(key, known)
    used = known.config.evaluation.num_tasks if key == "data.evaluation" else None
    num_used = min(len(tasks), used or len(tasks))
    context = context_of(known.config, known.model) if known.tokenizer else 0
    for index in range(num_used if fields else min(num_used, NUM_PROMPTS_CHECKED)):
        task = tasks.task(index)
        _check_fields(task, fields, source, f"row {index + 1} of {key}")
        if known.tokenizer is not None and index < NUM_PROMPTS_CHECKED:
            _check_length(task, known.tokenizer, context, key, source, index + 1)


def _fields_read(key: str, known: _Known) -> list[tuple[str, str, str]]:
    """The fields that rewards or the algorithm read: each with the key that asks for it, and what is named there."""
    config = known.config
    fields = [
        (need, f"rewards.{index}.name", spec.name)
        for index, spec in enumerate(config.rewards)
        for need in rewards.build(spec.name, spec.args, f"rewards.{index}").needs
    ]
    if key == "data.train" and not known.needs.rollout:
        fields.append(("response", "algorithm.name", config.algorithm.name))
    return fields


def _check_fields(task: Task, fields: list[tuple[str, str, str]], source: TaskSetConfig, where: str) -> None:
    columns = {"answer": source.format.answer, "response": source.format.response}
    brought = {**task.facts, "answer": task.answer, "response": task.response}
    for need, named_by, name in fields:
        if brought.get(need) is None:
            raise ConfigError(named_by, name, f"it needs the field {columns.get(need, need)!r}, which {where} lacks")


def _check_length(task: Task, tokenizer: Tokenizer, context: int, key: str, source: TaskSetConfig, row: int) -> None:
    try:
        length = len(tokenizer.encode_chat(task.messages))
    except ModelError as error:
        raise ConfigError(f"{key}.format.chat", source.format.chat, f"{error.found}: {error.remedy}") from None
    if length >= context:
        where = f"the prompt of row {row} has {length} tokens, the context has {context}"
        raise ConfigError(f"{key}.source", source.source, f"{where}: shorter prompts")


def _samples(known: _Known) -> tuple[str, ...]:
    tasks, tokenizer = known.train, known.tokenizer
    if tasks is None or tokenizer is None:
        return ()
    return tuple(tokenizer.render(tasks.at(position).messages) for position in range(min(NUM_SAMPLES, len(tasks))))


def _derived(known: _Known) -> Iterator[Derived]:
    config, train, held_out = known.config, known.train, known.held_out
    rollout, trainer = config.rollout, config.trainer
    last = last_step(config, len(train)) if train else config.steps
    yield Derived("run folder", str(Path(config.runs_dir) / config.name), "runs_dir / name; the same command again resumes it")
    yield Derived(
        "steps",
        str(last),
        "steps" if last == config.steps else f"epochs {config.epochs} x tasks / batch_groups, less than steps {config.steps}",
    )
    yield from _derived_data(known, last)
    yield Derived(
        "attempts a step",
        str(rollout.batch_groups * rollout.group_size),
        f"batch_groups {rollout.batch_groups} x group_size {rollout.group_size}",
    )
    updates = trainer.updates_per_batch * (rollout.batch_groups // (trainer.mini_batch_groups or rollout.batch_groups))
    yield Derived("optimizer updates a step", str(updates), "updates_per_batch x batch_groups / mini_batch_groups")
    if known.needs.rollout:
        yield from _derived_ratios(config, updates)
    yield Derived("learning rate", *_learning_rate(config, last))
    yield Derived("checkpoints", _steps_at(lambda s: is_due(s, config.checkpoint.every, last), last), "checkpoint.every, and the last step")
    if config.data.evaluation:
        every = _steps_at(lambda s: is_due(s, config.evaluation.every, last), last)
        yield Derived("evaluations", f"before training, {every}", "evaluation.every, and the last step")
        best = "share of exact answers" if held_out and held_out.task(0).answer is not None else "mean reward"
        yield Derived("best version", f"highest {best}", "its weights are kept beside the newest ones")
    pipeline = " -> ".join(spec.name for spec in config.operators) or "none"
    yield Derived("operators", pipeline, "in the order of the recipe; each says what it dropped and why")
    yield from _derived_model(known)


def _derived_ratios(config: RunConfig, updates: int) -> Iterator[Derived]:
    interval = config.sync.interval
    if updates == 1 and interval == 1:
        acts, why = (
            "ratios stay 1 in the only update, so clipping never acts",
            "the update of a batch starts from the weights that sampled it",
        )
    elif interval == 1:
        acts, why = "clipping can act", "only the first update of a batch starts from the weights that sampled it"
    else:
        acts, why = "clipping can act", f"sync.interval {interval}: older weights than the trainer's sample most batches"
    yield Derived("importance ratios", acts, why)
    reason = f"sync.interval {interval}: step s uses rollouts of version s-1 or up to that much older"
    yield Derived("staleness", f"at most {interval - 1}", reason)


def _derived_data(known: _Known, last: int) -> Iterator[Derived]:
    config, train, held_out = known.config, known.train, known.held_out
    if train is not None:
        needed = last * config.rollout.batch_groups
        if config.epochs is not None:
            needed = min(needed, config.epochs * len(train))  # the last step may be a short one
        yield Derived(
            "training tasks",
            str(len(train)),
            f"{needed} leases in {last} steps: {needed / len(train):.2f} epochs, {config.data.train.order}",
        )
    if held_out is not None:
        scored = min(len(held_out), config.evaluation.num_tasks or len(held_out))
        yield Derived("held-out tasks", str(scored), "greedy, one answer each")


def _derived_model(known: _Known) -> Iterator[Derived]:
    config, model = known.config, known.model
    yield Derived("model folder", str(model.folder or "downloaded at the first run"), f"model.path {model.name}")
    if known.tokenizer is None:
        return
    context = context_of(config, model)
    reason = "model.max_context" if config.model.max_context else "the model's own limit"
    yield Derived("context", f"{context} tokens", reason)
    num_parameters = model.num_parameters()
    if num_parameters:
        yield _disk(config, num_parameters)


def _disk(config: RunConfig, num_parameters: int) -> Derived:
    """What a run takes at most, experiences aside."""
    published = num_parameters * (4 if config.model.dtype == "float32" else 2)
    # AdamW's two moments are float32, and so is the copy of the weights that it updates where they are held in less.
    checkpoint = published + 4 * num_parameters * (2 if config.model.dtype == "float32" else 3)
    held, interval = config.checkpoint.keep, config.sync.interval
    # A version that was a checkpoint is linked to its files: it takes no room until the checkpoint is gone.
    shared = config.sync.method == "shared"
    versions = max(0, config.sync.keep - held) if shared else config.sync.keep + 1 + (held if interval > 1 else 0)
    versions += bool(config.data.evaluation)  # the best one
    free = shutil.disk_usage(_existing(Path(config.runs_dir))).free
    return Derived(
        "disk",
        f"at most {_size((held + 1) * checkpoint + versions * published)}, {_size(free)} free",
        f"{held} checkpoints and one being written, {_size(checkpoint)} each; "
        f"{versions} further versions, {_size(published)} each; experiences come on top",
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes < 1e10 else f"{num_bytes / 1e9:.0f} GB"


def _learning_rate(config: RunConfig, last: int) -> tuple[str, str]:
    trainer = config.trainer
    end = trainer.learning_rate if trainer.schedule == "constant" else 0
    warm = f"{trainer.warmup_steps} steps of warm-up" if trainer.warmup_steps else "no warm-up"
    return f"{trainer.learning_rate:g} -> {end:g}", f"schedule {trainer.schedule} over {last} steps, {warm}"


def _steps_at(due: Callable[[int], bool], last: int) -> str:
    steps = list(islice((step for step in range(1, last + 1) if due(step)), 6))
    return "after steps " + ", ".join(map(str, steps)) + (", ..." if len(steps) == 6 and steps[-1] != last else "")


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def as_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain values."""
    return {
        "config": plan.config.model_dump(mode="json"),
        "derived": [{"name": d.name, "value": d.value, "reason": d.reason} for d in plan.derived],
        "samples": list(plan.samples),
        "unchecked": list(plan.unchecked),
    }
