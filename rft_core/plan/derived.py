"""Every value that follows from a recipe, with its reason."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rft_core.algorithms import Needs
from rft_core.base_model import BaseModel
from rft_core.config import LabelsConfig, RunConfig
from rft_core.plan.facts import context_of, is_due, last_step, max_staleness
from rft_core.taskset import TaskSet
from rft_core.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Derived:
    """One value that follows from the recipe."""

    name: str
    value: str
    reason: str


@dataclass(slots=True)
class Known:
    """What was found out about a recipe so far; null where it could not be looked at here."""

    config: RunConfig
    model: BaseModel
    needs: Needs
    """The algorithm's."""
    tokenizer: Tokenizer | None = None
    train: TaskSet | None = None
    held_out: TaskSet | None = None
    unchecked: list[str] = field(default_factory=list)


def derive(known: Known) -> Iterator[Derived]:
    """Every derived value, in the order in which people read them."""
    config, train, held_out = known.config, known.train, known.held_out
    rollout, trainer = config.rollout, config.trainer
    last = last_step(config, len(train)) if train else config.steps
    yield Derived("run folder", str(Path(config.runs_dir) / config.name), "runs_dir / name; the same command again resumes it")
    yield Derived(
        "steps",
        str(last),
        "steps" if last == config.steps else f"epochs {config.epochs} x tasks / batch_groups, less than steps {config.steps}",
    )
    yield from _data(known, last)
    yield Derived(
        "attempts a step",
        str(rollout.batch_groups * rollout.group_size),
        f"batch_groups {rollout.batch_groups} x group_size {rollout.group_size}",
    )
    updates = trainer.updates_per_batch * (rollout.batch_groups // (trainer.mini_batch_groups or rollout.batch_groups))
    yield Derived("optimizer updates a step", str(updates), "updates_per_batch x batch_groups / mini_batch_groups")
    if known.needs.rollout:
        yield from _ratios(config, updates)
    if config.labels != LabelsConfig():
        yield _late_labels(max_staleness(config))
    yield Derived("learning rate", *_learning_rate(config, last))
    yield Derived("checkpoints", _steps_at(lambda s: is_due(s, config.checkpoint.every, last), last), "checkpoint.every, and the last step")
    if config.data.evaluation:
        every = _steps_at(lambda s: is_due(s, config.evaluation.every, last), last)
        yield Derived("evaluations", f"before training, {every}", "evaluation.every, and the last step")
        best = "share of exact answers" if held_out and held_out.task(0).answer is not None else "mean reward"
        yield Derived("best version", f"highest {best}", "its weights are kept beside the newest ones")
    pipeline = " -> ".join(spec.name for spec in config.operators) or "none"
    yield Derived("operators", pipeline, "in the order of the recipe; each says what it dropped and why")
    yield from _model_and_disk(known)


def _ratios(config: RunConfig, updates: int) -> Iterator[Derived]:
    interval, staleness = config.sync.interval, max_staleness(config)
    if updates == 1 and not staleness:
        acts, why = (
            "ratios stay 1 in the only update, so clipping never acts",
            "the update of a batch starts from the weights that sampled it",
        )
    elif not staleness:
        acts, why = "clipping can act", "only the first update of a batch starts from the weights that sampled it"
    else:
        acts, why = "clipping can act", f"batches may be up to {staleness} versions older than the weights that they train"
    yield Derived("importance ratios", acts, why)
    reason = f"mode {config.mode}, sync.interval {interval}: step s uses rollouts of version s-1 or up to that much older"
    if config.sync.max_staleness is not None:
        reason = "sync.max_staleness: groups that lie further behind are stale, and counted"
    yield Derived("staleness", f"at most {staleness}", reason)


def _late_labels(staleness: int) -> Derived:
    if staleness:
        late = f"trained up to {staleness} versions after their groups were sampled"
        return Derived("late labels", late, "staleness; the run does not wait for them: groups without a reward at its end are not used")
    return Derived("late labels", "not trained", "staleness 0: their groups are stale from the next step on; set sync.max_staleness")


def _data(known: Known, last: int) -> Iterator[Derived]:
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


def _model_and_disk(known: Known) -> Iterator[Derived]:
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
