"""Evaluate: score the policy on the held-out tasks, greedily, and keep the best version."""

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.catalog import Evaluation
from rft_core.config import RunConfig
from rft_core.explorer import Explorer, Finished, Sampling
from rft_core.failpoints import failpoint
from rft_core.rewards.exact import Exact, ExactConfig
from rft_core.types import Task
from tasks.publish import publish_files
from tasks.session import Session, get

HELD_OUT = "held_out"
"""Name of the recipe's evaluation set in the catalog."""

_CHECKS = ("exact", "numeric", "math")
"""Rewards that say whether an answer is right; the first one in the recipe decides what `exact` means."""


@task(task_run_name="evaluate-{step}", cache_policy=NO_CACHE)
async def evaluate(run: str, step: int) -> dict[str, float]:
    """Score version `step` if that is due; what was scored before is not scored again. Returns the metrics."""
    session = get(run)
    if not session.evaluation_due(step):
        return {}
    known = session.catalog.versions.evaluation(HELD_OUT, step)
    if known is None:
        with session.doing("evaluate", step):
            answers = await score(session.explorer, held_out(session), session.config)
        uri = await session.compute(session.store.write_answers, f"{HELD_OUT}-v{step:06d}", [{"version": step, **row} for row in answers])
        known = Evaluation(HELD_OUT, step, summary_of(answers), uri)
        if _beats(known, session) and step > 0:
            await session.compute(_keep_files, session, step)
        session.catalog.versions.record_evaluation(known)
        failpoint("evaluation.after")
    return dict(known.metrics)


async def score(explorer: Explorer, tasks: Sequence[Task], config: RunConfig) -> list[dict[str, Any]]:
    """Answer each task once, greedily; one row an answer, of the columns of `rft_core.buffer.schema.EVALUATION`."""
    sampling = Sampling(0.0, config.evaluation.max_tokens or config.rollout.max_tokens, config.rollout.timeout_s)
    finished = await explorer.answer(tasks, sampling)
    return [_row(task, result, config) for task, result in zip(tasks, finished, strict=True)]


def held_out(session: Session) -> list[Task]:
    """The tasks that are scored, in the order of their rows."""
    tasks = session.held_out
    assert tasks is not None
    return [tasks.task(index) for index in range(min(len(tasks), session.config.evaluation.num_tasks or len(tasks)))]


def summary_of(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The metrics of scored answers; a failed attempt counts as a wrong answer with reward 0."""
    exact = [float(row["exact"]) for row in answers if row["exact"] is not None]
    return {
        metrics.EVAL_REWARD: metrics.mean([row["reward"] or 0.0 for row in answers]),
        metrics.EVAL_TASKS: float(len(answers)),
    } | ({metrics.EVAL_EXACT: metrics.mean(exact)} if exact else {})


def best_version(session: Session) -> int | None:
    """The version with the highest share of exact answers, or the highest reward where answers can't be checked; the first of equals."""
    scored = session.catalog.versions.evaluations(HELD_OUT)
    return max(scored, key=_quality).version if scored else None


def _quality(evaluation: Evaluation) -> float:
    return evaluation.metrics.get(metrics.EVAL_EXACT, evaluation.metrics[metrics.EVAL_REWARD])


def _beats(evaluation: Evaluation, session: Session) -> bool:
    return all(_quality(evaluation) > _quality(other) for other in session.catalog.versions.evaluations(HELD_OUT))


def _keep_files(session: Session, version: int) -> None:
    """Give a version that lives in this process only its files, so that the best one can be kept."""
    known = session.catalog.versions.find(version)
    if known is None or known.uri is None:
        publish_files(session, version)


def _row(task: Task, result: Finished, config: RunConfig) -> dict[str, Any]:
    turns = [turn for trajectory in result.trajectories for turn in trajectory.turns]
    text = turns[-1].response_text if turns else ""
    return {
        "task_id": task.task_id,
        "prompt_text": task.messages[-1].content,
        "response_text": text,
        "answer": task.answer,
        "reward": result.reward.value,
        "exact": _is_exact(task, text, result, config),
        "reason": result.reward.reason,
        "error": result.error,
    }


def _is_exact(task: Task, text: str, result: Finished, config: RunConfig) -> bool | None:
    if task.answer is None:
        return None
    if result.error is not None:
        return False
    checks = [spec.name for spec in config.rewards if spec.name in _CHECKS]
    verdict = result.reward.parts.get(checks[0]) if checks else Exact(ExactConfig())(task, text).value
    return verdict == 1.0
