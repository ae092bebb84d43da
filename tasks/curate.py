"""Curate: lease the tasks that a step is tried on."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.session import Session, get


@task(task_run_name="curate-{step}", cache_policy=NO_CACHE)
async def curate(run: str, step: int) -> int:
    """Lease what a step still lacks; 0 when there is nothing more to try for it."""
    session = get(run)
    if session.catalog.claims.find(step) is not None:
        return 0
    session.timeline.mark_first_lease()
    epochs = session.config.epochs
    fresh = num_missing(session, step)
    issued = session.catalog.leases.issue(
        step,
        fresh,
        session.explorer.name,
        lambda position: session.tasks.at(position).task_id,
        None if epochs is None else epochs * len(session.tasks),
    )
    session.exhausted = session.exhausted or len(issued) < fresh
    unshaped = session.catalog.segments.unshaped(step, session.pipeline)
    return len(issued) + len(unshaped)


def num_missing(session: Session, step: int) -> int:
    """How many tasks must be leased anew for a step: a whole batch, or by the recipe's policy for short batches."""
    rollout = session.config.rollout
    fates = session.catalog.leases.of_step(step)
    if not fates:
        return rollout.batch_groups
    failed = sum(fate in ("failed", "timed_out") for fate in fates.values())
    if step == session.first_step and not session.measured(step) and failed > rollout.max_failed_frac * len(fates):
        return failed  # this step failed the run before; the same command again tries other tasks in their place
    rounds = len(session.catalog.segments.keys_of_step(step))
    if rollout.short_batch != "top_up" or rounds == 0 or rounds > rollout.max_refills:
        return 0
    if session.catalog.segments.unshaped(step, session.pipeline):
        return 0
    return max(0, rollout.batch_groups - sum(fate in ("ready", "expired") for fate in fates.values()))
