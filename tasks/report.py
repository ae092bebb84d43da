"""Report: show a step in Prefect and to whoever watches, and bring the monitor up to date after a checkpoint."""

import asyncio
from dataclasses import replace
from typing import Any

from prefect import task
from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, acreate_table_artifact, aupdate_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rft_core import metrics
from rft_core.buffer import read_answers
from rft_core.catalog import HELD_OUT, StepRow
from rft_core.failpoints import failpoint
from rft_core.types import Experience
from tasks.measure import groups_for
from tasks.session import Session, get


@task(task_run_name="report-{step}", cache_policy=NO_CACHE)
async def report(run: str, step: int) -> None:
    """Show a committed step."""
    session = get(run)
    row = step_row(session, step)
    get_run_logger().info(metrics.step_line(step, session.last_step, row.metrics))
    await publish_artifacts(session, row)
    await tell(session, row)


async def tell(session: Session, row: StepRow) -> None:
    """Tell whoever watches, and the monitor after a checkpoint: what it holds is then never redone."""
    session.progress.step(row.step, session.last_step, row.metrics)
    if row.checkpoint is not None:
        await asyncio.to_thread(export, session, row.step)


def export(session: Session, step: int) -> None:
    """Bring the monitor up to date with every step up to this one, its evaluations and samples."""
    rows = session.catalog.claims.steps(up_to=step)
    session.monitor.export_steps([(row.step, row.committed_at, row.metrics) for row in rows])
    for scored in session.catalog.versions.evaluations(HELD_OUT):
        if session.exported < scored.version <= step:
            name = evaluation_name(scored.version, session.last_step)
            session.monitor.log_evaluation(
                scored.version, name, read_answers(session.table.storage, scored.uri, scored.sha256), scored.metrics
            )
    for row in rows:
        if row.checkpoint is not None and row.step > session.exported:
            session.monitor.log_samples(row.step, samples(session, row.step, session.config.monitor.samples))
    session.monitor.log_snapshot({"sequence": session.catalog.segments.snapshot()})
    session.exported = step
    failpoint("monitor.exported")


def evaluation_name(version: int, last: int) -> str:
    """What people call the evaluation of a version."""
    return "before" if version == 0 else "after" if version == last else f"step {version}"


def step_row(session: Session, step: int) -> StepRow:
    """The committed row of a step."""
    return session.catalog.claims.steps(up_to=step)[-1]


def samples(session: Session, step: int, count: int) -> list[Experience]:
    """The best and the worst answers of a step, at most `count`, with the rewards that they have by now."""
    claim = session.catalog.claims.find(step)
    groups = session.store.groups(session.store.kept(list(groups_for(session, claim)))) if claim else []
    rewarded = [replace(row, reward=group.labelled.get(row.experience_id, row.reward)) for group in groups for row in group.rows]
    rows = sorted(rewarded, key=lambda row: (row.reward is not None, row.reward or 0.0), reverse=True)
    return rows if len(rows) <= count else [*rows[: count - count // 2], *rows[len(rows) - count // 2 :]]


async def publish_artifacts(session: Session, row: StepRow) -> None:
    """The step's table and samples, and the run's progress, in the Prefect UI."""
    key = session.run_dir.name.lower().replace("_", "-").replace(".", "-")
    units = {metric.name: metric for metric in metrics.described()}
    table = [
        {"metric": name, "value": value, "unit": units[name].unit, "meaning": units[name].meaning} for name, value in row.metrics.items()
    ]
    shown = await asyncio.to_thread(samples_markdown, session, row.step)
    await asyncio.gather(
        acreate_table_artifact(table=table, key=f"{key}-step", description=f"Step {row.step}"),
        acreate_markdown_artifact(shown, key=f"{key}-samples", description=f"Samples of step {row.step}"),
        _show_progress(session, key, 100.0 * row.step / session.last_step),
    )


async def _show_progress(session: Session, key: str, done: float) -> None:
    if session.progress_artifact is None:
        session.progress_artifact = await acreate_progress_artifact(done, key=f"{key}-progress", description="Steps done")
    else:
        await aupdate_progress_artifact(session.progress_artifact, done)


def samples_markdown(session: Session, step: int) -> str:
    """Samples of a step as a Markdown table: answer, reward, reason."""
    lines = ["| answer | reward | why |", "|---|---|---|"]
    for row in samples(session, step, session.config.monitor.samples):
        why: Any = row.error or row.info.get("reason", "")
        lines.append(f"| {_cell(row.response_text)} | {'' if row.reward is None else f'{row.reward:.3f}'} | {_cell(str(why))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:200]
