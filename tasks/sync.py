"""Sync: publish the step's weights, commit the step, and give the weights to whoever generates."""

import shutil

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.catalog import HELD_OUT, StepRow, best
from rft_core.trainer import checkpoint, manifest
from tasks.opening import load_engine
from tasks.publish import publish_files
from tasks.session import Session, get
from tasks.train import step_status


@task(task_run_name="sync-{step}", cache_policy=NO_CACHE)
async def sync(run: str, step: int) -> int:
    """Make version `step` public; from here on the step is done."""
    session = get(run)
    with session.doing("sync", step):
        await session.compute(_publish, session, step)
    session.measured(step)[metrics.SYNC_S] = session.timeline.last("sync")
    _commit(session, step)
    if session.config.mode == "sync":  # else whoever explores follows by itself, and an evaluation asks for what it scores
        await load_engine(session, step)
    await session.compute(_collect, session)
    return step


def _publish(session: Session, step: int) -> None:
    written = session.checkpoints.get(step)
    if written is not None:
        folder = session.run_dir.resolve(written)
        session.weights.publish(step, step, folder / "model", checkpoint.model_hashes(folder))
    elif session.config.sync.method == "shared":
        session.weights.publish_shared(step, step)
    elif step % session.config.sync.interval == 0:
        publish_files(session, step)


def _commit(session: Session, step: int) -> None:
    status, figures, written = step_status(session, step), session.figures.pop(step), session.checkpoints.pop(step, None)
    row = StepRow(step, status, step, figures, written, session.started.pop(step), 0.0)
    session.catalog.claims.commit_step(row, *session.batches.pop(step), session.generation)
    session.timeline.mark_commit()


def _collect(session: Session) -> None:
    """Remove weights and checkpoints that nothing needs any more; what can't be removed is tried again next time."""
    whole = manifest.complete(session.run_dir.checkpoints)[-session.config.checkpoint.keep :]
    kept = [int(path.name) for path in whole]
    old = [path for path in manifest.ordered(session.run_dir.checkpoints) if kept and int(path.name) < kept[0]]
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    interval = session.config.sync.interval
    needed = {best(session.catalog.versions.evaluations(HELD_OUT)), *kept, *(step - step % interval for step in kept)}
    stuck = session.weights.collect(session.config.sync.keep, {version for version in needed if version is not None})
    for folder in [*stuck, *(folder for folder in old if folder.exists())]:
        session.progress.note(f"can't remove {folder}, which nothing needs any more; it is tried again after the next step")
