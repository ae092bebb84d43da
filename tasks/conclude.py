"""Conclude: account for every lease, register the weights, and write the summary."""

import asyncio
import json
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.catalog import HELD_OUT, Evaluation
from rft_core.disk import write_whole
from rft_core.errors import TrainingError
from tasks.report import export
from tasks.session import Session, get


@task(task_run_name="conclude", cache_policy=NO_CACHE)
async def conclude(run: str) -> dict[str, Any]:
    """End a run whose steps are all done; returns its summary, which is also in `summary.json`."""
    session = get(run)
    if session.first_step > session.last_step and session.run_dir.summary_file.exists():
        session.progress.note(f"nothing to do: all {session.last_step} steps are done; set more `steps` to go on")
        return dict(json.loads(session.run_dir.summary_file.read_text()))
    session.catalog.leases.end_run()
    rows = session.catalog.claims.steps()
    if rows and all(row.status == "skipped" for row in rows):
        raise TrainingError(
            f"none of the {len(rows)} steps had anything to learn from", "`rft show` says what became of the groups, and why"
        )
    await asyncio.to_thread(_review, session)
    summary = summarise(session)
    write_whole(session.run_dir.summary_file, json.dumps(summary, indent=1))
    return summary


def _review(session: Session) -> None:
    rows = session.catalog.claims.steps()
    if not rows:
        return
    export(session, rows[-1].step)
    stored = [known for known in session.catalog.versions.all() if known.uri is not None]
    if stored:
        name = session.config.monitor.registered_model or session.run_dir.name
        session.catalog.versions.pin(stored[-1].version, "registered")  # the registry points to the folder
        session.monitor.register(name, session.run_dir.version(stored[-1].version).resolve(), stored[-1].version)


def summarise(session: Session) -> dict[str, Any]:
    """What the run came to; times are those of this process."""
    timeline = session.timeline
    scored = session.catalog.versions.evaluations(HELD_OUT)
    rows = session.catalog.claims.steps()
    return {
        "status": "completed",
        "run": session.run_dir.name,
        "run_id": session.run_id,
        "steps": len(rows),
        "steps_this_time": sum(row.step >= session.first_step for row in rows),
        "eval_before": _scores(scored[0]) if scored else None,
        "eval_after": _scores(scored[-1]) if scored else None,
        "train_wall_s": round(timeline.train_wall_s, 3),
        "orchestration_frac": round(timeline.orchestration_frac, 4),
        "startup_s": round(timeline.startup_s, 3),
        "checkpoint_s": round(timeline.total("checkpoint"), 3),
        "rollout_s": round(timeline.total("rollout"), 3),
        "update_s": round(timeline.total("train"), 3),
        "evaluate_s": round(timeline.total("evaluate"), 3),
        "versions": [known.version for known in session.catalog.versions.all() if known.uri is not None],
        "fates": session.catalog.leases.fates(),
    }


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "exact": evaluation.metrics.get(metrics.EVAL_EXACT),
        "reward": evaluation.metrics.get(metrics.EVAL_REWARD),
        "num_tasks": int(evaluation.metrics[metrics.EVAL_TASKS]),
    }
