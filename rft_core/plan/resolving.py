"""Resolving a recipe: checked as a whole, with what is on this machine. Pure, without torch or network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rft_core.algorithms import algorithms
from rft_core.base_model import BaseModel, locate
from rft_core.config import RunConfig, TaskSetConfig
from rft_core.errors import ConfigError, DataError, ModelError
from rft_core.monitor import require_address
from rft_core.plan.checks import check_combinations, check_extensions, check_operators, check_run_folder, check_table
from rft_core.plan.derived import Derived, Known, derive
from rft_core.plan.facts import context_of, open_held_out, open_train
from rft_core.plan.timeline import drawn
from rft_core.rewards import rewards
from rft_core.taskset import TaskSet, available_locally
from rft_core.tokens import Tokenizer
from rft_core.types import Task

NUM_SAMPLES = 3


NUM_PROMPTS_CHECKED = 2000
"""Prompts that `rft plan` makes and measures; the engine checks every one when it is used."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A recipe, resolved."""

    config: RunConfig
    derived: tuple[Derived, ...]
    samples: tuple[str, ...]
    """Rendered prompts of the first tasks."""
    unchecked: tuple[str, ...]
    """What could not be looked at here, and why."""
    timeline: tuple[str, ...]
    """How the mode overlaps rollout and training, drawn."""
    train: TaskSet | None = field(default=None, repr=False)
    """The training tasks, opened; null where they are not here."""
    held_out: TaskSet | None = field(default=None, repr=False)
    """The held-out tasks, opened; null where they are not here, or the recipe names none."""


def resolve(config: RunConfig) -> Plan:
    """Check a recipe as a whole and work out what follows from it.

    Raises:
        ConfigError: Something can't work; names the key, the value and what would be right.
    """
    check_extensions(config)
    needs = algorithms.build(config.algorithm.name, config.algorithm.args, "algorithm").needs
    check_combinations(config, needs)
    check_operators(config)
    check_run_folder(config)
    require_address(config.monitor)
    check_table(config)
    known = Known(config, _model(config), needs)
    known.tokenizer = _tokenizer(known)
    known.train = _tasks(known, "data.train", config.data.train, open_train)
    if config.data.evaluation:
        known.held_out = _tasks(known, "data.evaluation", config.data.evaluation, open_held_out)
    unchecked = tuple(known.unchecked)
    return Plan(config, tuple(derive(known)), _samples(known), unchecked, tuple(drawn(config)), known.train, known.held_out)


def _model(config: RunConfig) -> BaseModel:
    try:
        return locate(config.model.path)
    except ModelError as error:
        raise ConfigError("model.path", config.model.path, f"{error.found.removeprefix('model.path: ')}: {error.remedy}") from None


def _tokenizer(known: Known) -> Tokenizer | None:
    model = known.model
    if model.folder is None or not model.ready:
        why = "it is converted at the first run" if model.gguf_file else "it is downloaded at the first run"
        known.unchecked.append(f"model.path {model.name}: not checked, {why}")
        return None
    return Tokenizer(model.folder)


def _tasks(known: Known, key: str, source: TaskSetConfig, opener: Callable[[RunConfig], TaskSet | None]) -> TaskSet | None:
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


def _check_tasks(known: Known, key: str, tasks: TaskSet, source: TaskSetConfig) -> None:
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


def _fields_read(key: str, known: Known) -> list[tuple[str, str, str]]:
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


def _samples(known: Known) -> tuple[str, ...]:
    tasks, tokenizer = known.train, known.tokenizer
    if tasks is None or tokenizer is None:
        return ()
    return tuple(tokenizer.render(tasks.at(position).messages) for position in range(min(NUM_SAMPLES, len(tasks))))


def as_json(plan: Plan) -> dict[str, Any]:
    """A plan as plain values."""
    return {
        "config": plan.config.model_dump(mode="json"),
        "timeline": list(plan.timeline),
        "derived": [{"name": d.name, "value": d.value, "reason": d.reason} for d in plan.derived],
        "samples": list(plan.samples),
        "unchecked": list(plan.unchecked),
    }
