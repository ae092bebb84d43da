"""Shape: run the operators over what was stored, and lay the result over it."""

from dataclasses import asdict, replace

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.operators.apply import apply
from rft_core.operators.table import dropped_groups, group_of, shaped_rows
from tasks.session import Session, get


@task(task_run_name="shape-{step}", cache_policy=NO_CACHE)
async def shape(run: str, step: int) -> int:
    """Shape the groups that wait for it; returns how many of them operators dropped."""
    session = get(run)
    with session.doing("shape", step):
        dropped = await shape_waiting(session)
    session.measured(step)[metrics.SHAPE_S] = session.timeline.last("shape")
    return dropped


async def shape_waiting(session: Session) -> int:
    """Shape the groups that wait for it now; returns how many of them operators dropped."""
    dropped = 0
    for segment, group_ids in session.catalog.segments.to_shape().items():
        dropped += await session.compute(_shape_groups, session, segment, group_ids)
    return dropped


def _shape_groups(session: Session, segment: str, group_ids: list[str]) -> int:
    read_at = session.catalog.segments.snapshot()  # a group that is labelled from here on is shaped again
    stored = session.store.groups(group_ids, at=read_at)
    applied = apply(tuple(group_of(group) for group in stored), session.operators)
    dropped = dropped_groups(applied.groups)
    account = [asdict(replace(one, dropped=dict(one.dropped))) for one in applied.account]
    session.store.overlay(segment, shaped_rows(applied.groups), account, dropped, read_at)
    return len(dropped)
