"""Curate: lease the tasks that a step is tried on."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core.plan import short_batch
from tasks.session import Session, get


@task(task_run_name="curate-{step}", cache_policy=NO_CACHE)
async def curate(run: str, step: int) -> int:
    """Lease what a step still lacks; 0 when there is nothing more to try for it."""
    session = get(run)
    if session.catalog.claims.find(step) is not None:
        return 0
    session.store.settle()
    session.timeline.mark_first_lease()
    issued = session.catalog.leases.issue(
        step,
        num_fresh(session, step),
        session.explorer.name,
        lambda position: session.tasks.at(position).task_id,
        session.end,
        generation=session.generation,
    )
    session.ends_at = session.catalog.leases.exhausted_at(session.end)
    return len(issued) + len(session.catalog.segments.to_shape())


def num_fresh(session: Session, step: int) -> int:
    """How many new tasks a step wants: a whole batch, or by the recipe's policy for short batches."""
    rollout = session.config.rollout
    fates = session.catalog.leases.of_step(step)
    if not fates:
        return rollout.batch_groups
    rounds = session.catalog.segments.num_appends(step)
    refills = short_batch(session.config) == "top_up" and 0 < rounds <= rollout.max_refills
    waits = session.catalog.leases.num_to_reissue(step) or session.catalog.segments.to_shape()
    if not refills or waits:
        return 0
    return max(0, rollout.batch_groups - sum(fate == "ready" for fate in fates.values()))
