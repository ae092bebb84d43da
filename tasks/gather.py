"""Gather: wait until explorers have brought a step's batch, and choose it."""

import asyncio

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from tasks.choose import choose
from tasks.session import get
from tasks.shape import shape_waiting

POLL_S = 0.05
"""How often the catalog is asked whether the batch is there."""
LONELY_S = 30.0
"""After so long without any group in flight people are told that explorers are missing."""


@task(task_run_name="gather-{step}", cache_policy=NO_CACHE)
async def gather(run: str, step: int) -> bool:
    """Wait until a step's batch can be chosen, and choose it; false when there is nothing left to train on."""
    session = get(run)
    if session.catalog.claims.find(step) is not None:
        return True
    wanted, told = session.config.rollout.batch_groups, False
    with session.doing("wait", step):
        began = asyncio.get_running_loop().time()
        while True:
            is_last = session.catalog.leases.is_exhausted(session.end)  # asked first: what was stored before it is ready then
            session.store.settle()
            await shape_waiting(session)
            if session.catalog.claims.num_candidates(wanted) >= (1 if is_last else wanted):
                claim = await session.compute(choose, session, step, 1 if is_last else wanted)
                if claim is not None:
                    break
            elif is_last and not session.catalog.labels.num_due():
                return False
            if not told and asyncio.get_running_loop().time() - began > LONELY_S and not session.catalog.leases.num_in_flight():
                told = True
                session.progress.note(f"nobody tries tasks for step {step}: start an explorer with `rft explore {session.run_dir.name}`")
            await asyncio.sleep(POLL_S)
    if is_last and len(claim.group_ids) < wanted:
        session.ends_at = step
    session.measured(step)[metrics.WAIT_S] = session.timeline.last("wait")
    return True
