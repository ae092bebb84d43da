"""Rollout: try the leased tasks, and store every attempt."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from tasks.session import get


@task(task_run_name="rollout-{step}", cache_policy=NO_CACHE)
async def rollout(run: str, step: int) -> int:
    """Try what is leased for a step; returns the number of groups."""
    session = get(run)
    leases = session.catalog.leases.open(step)
    if not leases:
        return 0
    config = session.config.rollout
    tasks = [session.tasks.at(lease.position) for lease in leases]
    with session.doing("rollout", step):
        await session.explorer.rollout(step, leases, tasks, config.group_size, session.sampling, config.max_failed_frac)
    session.measured(step)[metrics.ROLLOUT_S] = session.timeline.last("rollout")
    return len(leases)
