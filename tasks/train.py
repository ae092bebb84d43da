"""Train: choose the step's batch once, learn from it, and write a checkpoint when one is due."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.catalog import Claim
from rft_core.disk import folder_written_whole, no_space
from rft_core.failpoints import failpoint
from rft_core.operators.table import group_of
from rft_core.trainer import checkpoint
from rft_core.trainer.batch import make_batch
from tasks.choose import choose
from tasks.measure import measure_rollout
from tasks.session import Session, get


@task(task_run_name="train-{step}", cache_policy=NO_CACHE)
async def train(run: str, step: int) -> dict[str, float]:
    """Make version `step` in memory; returns the step's metrics."""
    session = get(run)
    claim = session.catalog.claims.find(step)
    if claim is None:
        claim = await session.compute(choose, session, step)
    assert claim is not None, "of a batch of any size there is a claim"
    with session.doing("train", step):
        figures = await session.compute(_update, session, claim)
    session.measured(step).update(figures)
    session.measured(step)[metrics.TRAIN_S] = session.timeline.last("train")
    failpoint("train.after")
    if session.checkpoint_due(step):
        with session.doing("checkpoint", step):
            await session.compute(_write_checkpoint, session, claim)
        session.measured(step)[metrics.CHECKPOINT_S] = session.timeline.last("checkpoint")
    return session.measured(step)


def _update(session: Session, claim: Claim) -> dict[str, float]:
    stored = session.store.groups(claim.group_ids, claim.snapshot["pipeline"], claim.snapshot["sequence"])
    batch = make_batch([group_of(group) for group in stored], session.algorithm)
    session.batches[claim.step] = batch.group_ids, batch.left_out
    figures = session.trainer.step(claim.step, batch)
    figures |= measure_rollout(session, claim)
    figures |= metrics.staleness({int(versions): groups for versions, groups in claim.snapshot.get("behind", {}).items()})
    figures[metrics.LEFT_OUT] = float(sum(claim.left_out.values()))
    return figures


def _write_checkpoint(session: Session, claim: Claim) -> None:
    """Everything that a restart needs, and what the step row will say, so that a kill before that row loses nothing."""
    path = session.run_dir.checkpoint(claim.step)
    extra = {
        "step": claim.step,
        "status": step_status(session, claim.step),
        "metrics": session.measured(claim.step),
        "trained": session.batches[claim.step][0],
        "left_out": session.batches[claim.step][1],
        "started_at": session.started[claim.step],
        "snapshot": dict(claim.snapshot),
    }
    try:
        with folder_written_whole(path) as folder:
            checkpoint.save(folder, session.trainer, claim.step, extra, session.base_folder)
            failpoint("checkpoint.written")
            session.catalog.trainers.check(session.generation)  # a replaced trainer must not put its own in the place of the other's
    except OSError as error:
        raise no_space(error, path.parent) from None
    failpoint("checkpoint.renamed")
    session.checkpoints[claim.step] = session.run_dir.relative(path)


def step_status(session: Session, step: int) -> str:
    """`trained`, or `skipped` for a step that made no update."""
    return "trained" if session.measured(step).get(metrics.NUM_UPDATES) else "skipped"
