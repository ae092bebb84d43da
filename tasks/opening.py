"""Opening a run, where it stopped, and closing it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from rft_core import plan
from rft_core.algorithms import algorithms
from rft_core.base_model import locate
from rft_core.buffer import ExperienceStore, Table, open_known, open_table
from rft_core.catalog import TRAINER_LEASE_S, Catalog, StepRow, heartbeat
from rft_core.config import CHANGEABLE_ON_RESUME, ExtensionSpec, RunConfig, changed_keys, dump, read_recipe
from rft_core.disk import remove_leftovers, write_whole
from rft_core.engines import engines
from rft_core.environments import environments
from rft_core.errors import LostClaimError, RunError, TidemillError
from rft_core.explorer import Explorer, Scorers, Unscored
from rft_core.monitor import Monitor, open_monitor
from rft_core.operators.apply import build_operators, pipeline_version
from rft_core.processes import this_process
from rft_core.rewards.pool import ScorerPool
from rft_core.run_dir import RunDir
from rft_core.tokens import Tokenizer
from rft_core.trainer import checkpoint
from rft_core.trainer.convert import materialise
from rft_core.trainer.policy import Policy
from rft_core.trainer.trainer import Trainer
from rft_core.weights import WeightStore
from tasks.explore import Exploration
from tasks.progress import watcher
from tasks.session import Session, live

EXPLORER = "explorer-0"
"""Name of the explorer that shares a process with the trainer."""
TRAINER = "trainer"
"""Name under which a trainer writes that has no explorer in its process."""


@asynccontextmanager
async def opened(config: RunConfig) -> AsyncIterator[Session]:
    """Open a run, new or to be resumed, for as long as the block lasts.

    Raises:
        RunError: Another process trains it, or it was started with another recipe.
        UserError: Something that the recipe names can't be used.
    """
    run_dir = RunDir(Path(config.runs_dir) / config.name)
    run_dir.create()
    before = _earlier_recipe(run_dir, config)
    async with AsyncExitStack() as parts:
        writer = TRAINER if config.mode == "async" else EXPLORER
        table = (open_known if before else open_table)(run_dir, config, pipeline_version(config.operators), writer)
        parts.callback(table.catalog.close)
        generation = table.catalog.trainers.take_over(this_process())
        parts.callback(table.catalog.trainers.release, generation)
        parts.enter_context(heartbeat(partial(_beat, table.catalog, generation), TRAINER_LEASE_S / 4))
        parts.push(partial(_leave_reason, run_dir, partial(_is_mine, table.catalog, generation)))
        session = await _assemble(config, run_dir, table, generation, parts)
        await _go_on(session, before)
        write_whole(run_dir.recipe_file, dump(config))  # only now: a recipe that can't be opened binds nobody
        run_dir.failure_file.unlink(missing_ok=True)
        live[session.run_id] = session
        parts.callback(live.pop, session.run_id)
        yield session


def _beat(catalog: Catalog, generation: int) -> None:
    """Keep alive what this process holds: the run, its leases, and the version that its engine uses."""
    catalog.trainers.renew(generation)
    catalog.leases.renew(EXPLORER)
    catalog.versions.seen(reader_of(generation))


def reader_of(generation: int) -> str:
    """The engine of a trainer's process as a reader of weights: not that of the trainer which it replaced."""
    return f"{EXPLORER} of trainer {generation}"


def _is_mine(catalog: Catalog, generation: int) -> bool:
    """Whether this process is the run's trainer still: one that was replaced says nothing in the run's name any more."""
    try:
        catalog.trainers.check(generation)
    except LostClaimError:
        return False
    except TidemillError:  # a catalog that can't be reached may be why the run ends, and nobody else trains it then
        return True
    return True


def _earlier_recipe(run_dir: RunDir, config: RunConfig) -> RunConfig | None:
    """The recipe that the run was last opened with; refuses one that differs in more than may change on resume."""
    if not run_dir.recipe_file.exists():
        return None
    before = read_recipe(run_dir.recipe_file)
    changed = changed_keys(before.model_dump(mode="json"), config.model_dump(mode="json"))
    refused = [key for key in changed if not any(key == may or key.startswith(f"{may}.") for may in CHANGEABLE_ON_RESUME)]
    if refused:
        raise RunError(
            f"{run_dir.root} was started with another {', '.join(refused)}",
            f"set another `name` for a new run; on resume only {', '.join(CHANGEABLE_ON_RESUME)} may change",
        )
    return before


async def _assemble(config: RunConfig, run_dir: RunDir, table: Table, generation: int, parts: AsyncExitStack) -> Session:
    """Build every live part of a run; each is closed when `parts` is, whatever fails in between."""
    progress = watcher()
    progress.note(f"loading {config.model.path}")
    computer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
    parts.callback(computer.shutdown)
    sampler = computer if config.mode != "one_step" else ThreadPoolExecutor(max_workers=1, thread_name_prefix="sample")
    parts.callback(sampler.shutdown)
    loop = asyncio.get_running_loop()
    base_folder = await loop.run_in_executor(computer, materialise, locate(config.model.path))
    resolved = await loop.run_in_executor(computer, plan.resolve, config)  # now that the model is here to be checked
    catalog = table.catalog
    _take_back(table, generation)
    for folder in (run_dir.checkpoints, run_dir.weights):
        remove_leftovers(folder)
    monitor = await loop.run_in_executor(computer, _open_monitor, config, run_dir)
    parts.push_async_exit(partial(_finish, monitor, partial(_is_mine, table.catalog, generation)))
    explorer = build_explorer(EXPLORER, config, base_folder, table.store, sampler)
    parts.push_async_callback(explorer.scorers.close)
    parts.push_async_callback(explorer.engine.close)
    parts.callback(catalog.versions.release, reader_of(generation))
    tasks, held_out = resolved.train, resolved.held_out
    if tasks is None:  # it was not in the local cache, and is downloaded now
        tasks = await loop.run_in_executor(computer, plan.open_train, config)
    if held_out is None:
        held_out = await loop.run_in_executor(computer, plan.open_held_out, config)
    policy = await loop.run_in_executor(computer, Policy.load, base_folder, config.model.dtype)
    algorithm = algorithms.build(config.algorithm.name, config.algorithm.args, "algorithm")
    session = Session(
        config=config,
        run_dir=run_dir,
        generation=generation,
        table=table,
        weights=WeightStore(run_dir, catalog, generation, config.model.path),
        base_folder=base_folder,
        policy=policy,
        algorithm=algorithm,
        trainer=Trainer(config.trainer, policy, algorithm, total_steps=plan.last_step(config, len(tasks)), seed=config.seed),
        engine=explorer.engine,
        explorer=explorer,
        operators=build_operators(config.operators, config.rollout.max_tokens),
        pipeline=pipeline_version(config.operators),
        tasks=tasks,
        held_out=held_out,
        monitor=monitor,
        computer=computer,
        progress=progress,
    )
    if config.mode == "one_step":
        session.exploration = Exploration(config, run_dir, catalog, explorer, base_folder, tasks, reader_of(generation))
    return session


def _leave_reason(
    run_dir: RunDir,
    is_mine: Callable[[], bool],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leave the reason of a failure with the run, for `rft show`; a run that went on to its end has none."""
    if not is_mine():
        return
    if error is None:
        run_dir.failure_file.unlink(missing_ok=True)
    elif isinstance(error, Exception):
        with suppress(OSError, TidemillError):  # a full disk may be the very reason
            write_whole(run_dir.failure_file, f"{type(error).__name__}: {error}\n")


async def _finish(
    monitor: Monitor,
    is_mine: Callable[[], bool],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Tell the monitor how the run ended; a monitor that fails then must not hide why the run did."""
    if not is_mine():
        return
    if error is None:
        await asyncio.to_thread(monitor.finish, "FINISHED", "")
        return
    reason = str(error) if isinstance(error, TidemillError) else f"{type(error).__name__}: {error}"
    try:
        await asyncio.to_thread(monitor.finish, "FAILED" if isinstance(error, Exception) else "KILLED", reason)
    except TidemillError as second:
        watcher().note(f"the monitor could not be told how the run ended: {second}")


def _take_back(table: Table, generation: int) -> None:
    """Close what an earlier process of this run held, and remove what it left half-written: it is dead, or could not be replaced."""
    table.catalog.versions.release(reader_of(generation - 1))
    table.catalog.leases.take_back(EXPLORER, "the process that held it ended")
    table.catalog.leases.expire_overdue()
    if table.store.terms.pipeline is None:
        table.catalog.segments.pass_shaping()
    table.store.sweep()


def open_scorers(config: RunConfig) -> Scorers:
    """Worker processes that score answers; a recipe without rewards needs none."""
    return ScorerPool(config.rewards, config.rollout.scorers) if config.rewards else Unscored()


def build_explorer(name: str, config: RunConfig, base_folder: Path, store: ExperienceStore, computer: ThreadPoolExecutor) -> Explorer:
    """An explorer with its scorers, and with its engine, which has no weights yet."""
    tokenizer = Tokenizer(base_folder)
    engine_spec, environment = config.rollout.engine, config.rollout.environment
    replays = not algorithms.build(config.algorithm.name, config.algorithm.args, "algorithm").needs.rollout
    held_out = config.evaluation.environment or (ExtensionSpec(name="single_turn") if replays else environment)
    max_context = plan.context_of(config, locate(str(base_folder)))
    engine = engines.build(
        engine_spec.name,
        engine_spec.args,
        "rollout.engine",
        tokenizer=tokenizer,
        max_context=max_context,
        dtype=config.model.dtype,
        compute=computer,
    )
    return Explorer(
        name=name,
        seed=config.seed,
        engine=engine,
        tokenizer=tokenizer,
        max_context=max_context,
        environment=lambda: environments.build(environment.name, environment.args, "rollout.environment"),
        held_out_environment=lambda: environments.build(held_out.name, held_out.args, "evaluation.environment"),
        scorers=open_scorers(config),
        store=store,
    )


async def _go_on(session: Session, before: RunConfig | None) -> None:
    """Go on from the newest complete checkpoint, if there is one, and give the engine its weights."""
    session.catalog.leases.bind(session.tasks.fingerprint)
    newest = checkpoint.newest(session.run_dir.checkpoints)
    _check_horizon(session, before, int(newest.name) if newest else 0)
    if newest is None:
        session.weights.publish_shared(0, 0)
    else:
        session.first_step = await _restore(session, newest) + 1
    session.ends_at = session.catalog.leases.exhausted_at(session.end)
    if session.config.mode == "sync":
        await load_engine(session, session.first_step - 1)
    if session.first_step <= session.last_step:
        session.run_dir.summary_file.unlink(missing_ok=True)  # of a shorter run, which is no longer the whole of it
    session.timeline.mark_ready()
    session.progress.begin(session.run_dir.name, session.first_step - 1, session.last_step)


def _check_horizon(session: Session, before: RunConfig | None, checkpointed: int) -> None:
    """Refuse a new end of the schedule while steps must be redone as they were."""
    config = session.config
    if before is None or config.trainer.schedule == "constant" or (before.steps, before.epochs) == (config.steps, config.epochs):
        return
    committed = [row.step for row in session.catalog.claims.steps()]
    if committed and committed[-1] > checkpointed:
        raise RunError(
            f"steps {checkpointed + 1} to {committed[-1]} of {session.run_dir.root} must be redone, with the learning rates that they had",
            f"run it with steps: {before.steps} first, then with more",
        )


async def _restore(session: Session, newest: Path) -> int:
    """Put the trainer where the checkpoint left it, and finish the checkpoint's step; returns its number."""
    extra = await session.compute(checkpoint.load, newest, session.trainer)
    step = int(extra["step"])
    if session.policy.module.device.type != "cpu":
        session.weights.retire(step)  # what is redone gets other bytes there
    session.weights.publish(step, step, newest / "model", checkpoint.model_hashes(newest))
    row = StepRow(step, extra["status"], step, extra["metrics"], session.run_dir.relative(newest), extra["started_at"], 0.0)
    session.catalog.claims.commit_step(row, extra["trained"], extra["left_out"], session.generation)
    return step


async def load_engine(session: Session, step: int) -> None:
    """Give the engine the weights of the newest synced version up to a step, and say that it uses them."""
    if session.config.sync.method == "shared":
        version, source = step, session.policy.module
    else:
        version = step if step == session.last_step else step - step % session.config.sync.interval
        source = session.weights.fetch(version) if version else session.base_folder
    await session.engine.load(version, source)
    session.catalog.versions.acknowledge(reader_of(session.generation), version)


def _open_monitor(config: RunConfig, run_dir: RunDir) -> Monitor:
    return open_monitor(config.monitor, run_dir.root.parent, run_dir.run_id, run_dir.name, dump(config), config.model_dump(mode="json"))
