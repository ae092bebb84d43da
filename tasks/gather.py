"""Gather: wait until explorers have brought a step's batch, and choose it."""

import asyncio
import time

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.catalog import Claim
from rft_core.plan import admission
from tasks.choose import choose
from tasks.session import Session, get
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
    session.timeline.mark_first_lease()
    with session.doing("wait", step):
        claim = await _wait_for_batch(session, step)
    session.measured(step)[metrics.WAIT_S] = session.timeline.last("wait")
    return claim is not None


async def _wait_for_batch(session: Session, step: int) -> Claim | None:
    """The claim of a step's batch as soon as there is one; null when nothing more will come for it."""
    leases, wanted = session.catalog.leases, session.config.rollout.batch_groups
    tried_at, lonely_at = -1, time.monotonic() + LONELY_S
    while True:
        # Asked first: what was stored before is ready when the choice is made.
        is_last = leases.is_exhausted(session.end)
        least = 1 if is_last else 0 if _is_stuck(session) else wanted
        session.store.settle()
        await shape_waiting(session)
        at = session.catalog.segments.snapshot()
        if (at != tried_at or least < wanted) and session.catalog.claims.num_candidates(wanted) >= least:
            claim = await session.compute(choose, session, step, least)
            if claim is not None:
                if is_last and len(claim.group_ids) < wanted:
                    session.ends_at = step
                return claim
            tried_at = at  # a selection that passes groups over would choose the same until others come
        if is_last and not session.catalog.labels.num_due():
            return None
        if time.monotonic() > lonely_at and not (leases.expire_overdue() or leases.num_in_flight()):
            lonely_at = float("inf")
            session.progress.note(f"nobody tries tasks for step {step}: start an explorer with `rft explore {session.run_dir.name}`")
        await asyncio.sleep(POLL_S)


def _is_stuck(session: Session) -> bool:
    """Whether selection passed over so many groups that explorers may try no others: the step then takes what there is, perhaps nothing.

    The next step starts from a newer version, for which what was passed over is staler, and at last too stale.
    """
    catalog = session.catalog
    if catalog.leases.num_in_flight() or catalog.segments.to_shape():
        return False
    return not catalog.leases.num_admissible(catalog.versions.newest(), admission(session.config))
