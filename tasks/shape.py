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
    """Shape the segments of a step that were not shaped yet; returns how many groups operators dropped."""
    session = get(run)
    with session.doing("shape", step):
        dropped = 0
        for segment in session.catalog.segments.unshaped(step, session.pipeline):
            dropped += await session.compute(_shape_segment, session, segment)
    session.measured(step)[metrics.SHAPE_S] = session.timeline.last("shape")
    return dropped


def _shape_segment(session: Session, segment: str) -> int:
    stored = session.store.groups(session.catalog.segments.groups_of(segment))
    applied = apply(tuple(group_of(group) for group in stored), session.operators)
    dropped = dropped_groups(applied.groups)
    account = [asdict(replace(one, dropped=dict(one.dropped))) for one in applied.account]
    session.store.overlay(session.pipeline, segment, shaped_rows(applied.groups), account, dropped)
    return len(dropped)
