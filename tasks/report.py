"""Report: show a step in Prefect and to whoever watches, and bring the monitor up to date after a checkpoint."""

import asyncio
from typing import Any
from uuid import UUID

from prefect import task
from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, acreate_table_artifact, aupdate_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger

from rft_core import metrics
from rft_core.buffer import read_answers
from rft_core.catalog import StepRow
from rft_core.failpoints import failpoint
from rft_core.types import Experience
from tasks.session import Session, get

_progress_artifacts: dict[str, UUID] = {}


@task(task_run_name="report-{step}", cache_policy=NO_CACHE)
async def report(run: str, step: int) -> None:
    """Show a committed step."""
    session = get(run)
    row = step_row(session, step)
    get_run_logger().info(one_line(row, session.last_step))
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
    for scored in session.catalog.versions.evaluations("held_out"):
        name = evaluation_name(scored.version, session.last_step)
        session.monitor.log_evaluation(scored.version, name, read_answers(session.run_dir, scored.uri), scored.metrics)
    session.monitor.log_samples(step, samples(session, step, session.config.monitor.samples))
    session.monitor.log_snapshot(session.catalog.segments.snapshot())
    failpoint("monitor.exported")


def evaluation_name(version: int, last: int) -> str:
    """What people call the evaluation of a version."""
    return "before" if version == 0 else "after" if version == last else f"step {version}"


def step_row(session: Session, step: int) -> StepRow:
    """The committed row of a step."""
    return session.catalog.claims.steps(up_to=step)[-1]


def one_line(row: StepRow, last: int) -> str:
    """A step in one line."""
    figures = row.metrics
    parts = [f"step {row.step}/{last} {row.status}"]
    for label, name in (
        ("reward", metrics.REWARD_MEAN),
        ("loss", metrics.LOSS),
        ("grad norm", metrics.GRAD_NORM),
        ("tokens", metrics.NUM_TOKENS),
    ):
        if name in figures:
            parts.append(f"{label} {figures[name]:.4g}")
    return ", ".join(parts)


def samples(session: Session, step: int, count: int) -> list[Experience]:
    """The best and the worst answers of a step, at most `count`."""
    keys = session.catalog.segments.keys_of_step(step)
    groups = session.store.groups([group for key in keys for group in session.catalog.segments.groups_of(key)])
    rows = sorted(
        (row for group in groups for row in group.rows), key=lambda row: (row.reward is not None, row.reward or 0.0), reverse=True
    )
    return rows if len(rows) <= count else [*rows[: count - count // 2], *rows[len(rows) - count // 2 :]]


async def publish_artifacts(session: Session, row: StepRow) -> None:
    """The step's table and samples, and the run's progress, in the Prefect UI."""
    key = session.run_dir.name.lower().replace("_", "-").replace(".", "-")
    units = {metric.name: metric for metric in metrics.described()}
    table = [
        {"metric": name, "value": value, "unit": units[name].unit, "meaning": units[name].meaning} for name, value in row.metrics.items()
    ]
    await acreate_table_artifact(table=table, key=f"{key}-step", description=f"Step {row.step}")
    await acreate_markdown_artifact(samples_markdown(session, row.step), key=f"{key}-samples", description=f"Samples of step {row.step}")
    done = 100.0 * row.step / session.last_step
    known = _progress_artifacts.get(session.run_id)
    if known is None:
        _progress_artifacts[session.run_id] = await acreate_progress_artifact(done, key=f"{key}-progress", description="Steps done")
    else:
        await aupdate_progress_artifact(known, done)


def samples_markdown(session: Session, step: int) -> str:
    """Samples of a step as a Markdown table: answer, reward, reason."""
    lines = ["| answer | reward | why |", "|---|---|---|"]
    for row in samples(session, step, session.config.monitor.samples):
        why: Any = row.error or row.info.get("reason", "")
        lines.append(f"| {_cell(row.response_text)} | {'' if row.reward is None else f'{row.reward:.3f}'} | {_cell(str(why))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:200]
