"""Evaluate: score the policy on the held-out tasks, greedily, and keep the best version."""

from collections.abc import Sequence
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core import metrics
from rft_core.catalog import HELD_OUT, Evaluation, best
from rft_core.config import RunConfig
from rft_core.errors import RolloutError
from rft_core.explorer import Explorer, Finished, Sampling, too_many_failed
from rft_core.failpoints import failpoint
from rft_core.rewards.exact import Exact, ExactConfig
from rft_core.taskset import TaskSet
from rft_core.types import Task
from tasks.publish import publish_files
from tasks.session import Session, get

_CHECKS = ("exact", "numeric", "math")
"""Rewards that say whether an answer is right; the first one in the recipe decides what `exact` means."""


@task(task_run_name="evaluate-{step}", cache_policy=NO_CACHE)
async def evaluate(run: str, step: int) -> dict[str, float]:
    """Score version `step` if that is due; what was scored before is not scored again. Returns the metrics."""
    session = get(run)
    tasks = session.held_out
    if tasks is None or not session.evaluation_due(step):
        return {}
    known = session.catalog.versions.evaluation(HELD_OUT, step)
    if known is None:
        with session.doing("evaluate", step):
            if session.exploration is not None:
                await session.exploration.follow()
            elif session.config.mode == "async":
                await session.engine.load(step, session.policy.module)  # it only scores here, between steps
            answers = await score(session.explorer, held_out_tasks(tasks, session.config), session.config)
        rows = [{"version": step, **row} for row in answers]
        file = await session.compute(session.store.write_answers, f"{HELD_OUT}-v{step:06d}", rows)
        known = Evaluation(HELD_OUT, step, summary_of(answers), file.uri, file.sha256)
        if step > 0 and best([*session.catalog.versions.evaluations(HELD_OUT), known]) == step:
            await session.compute(_keep_files, session, step)
        session.catalog.versions.record_evaluation(known)
        failpoint("evaluation.after")
    return dict(known.metrics)


async def score(explorer: Explorer, tasks: Sequence[Task], config: RunConfig) -> list[dict[str, Any]]:
    """Answer each task once, greedily; one row an answer, of the columns of `rft_core.buffer.schema.EVALUATION`.

    Raises:
        RolloutError: More attempts failed than `rollout.max_failed_frac` allows: a broken grader is no verdict on a model.
    """
    sampling = Sampling(0.0, config.evaluation.max_tokens or config.rollout.max_tokens, config.rollout.timeout_s)
    finished = await explorer.answer(tasks, sampling)
    failure = too_many_failed([result.error for result in finished], config.rollout.max_failed_frac)
    if failure is not None:
        raise RolloutError(f"evaluation: {failure}")
    return [_row(task, result, config) for task, result in zip(tasks, finished, strict=True)]


def held_out_tasks(tasks: TaskSet, config: RunConfig) -> list[Task]:
    """The tasks that are scored, in the order of their rows."""
    return [tasks.task(index) for index in range(min(len(tasks), config.evaluation.num_tasks or len(tasks)))]


def summary_of(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The metrics of scored answers; a failed attempt is a wrong answer with reward 0, and is counted as failed."""
    rewards = [0.0 if row["error"] else row["reward"] for row in answers]
    return metrics.known(
        {
            metrics.EVAL_EXACT: metrics.mean([float(row["exact"]) for row in answers if row["exact"] is not None]),
            metrics.EVAL_REWARD: metrics.mean([reward for reward in rewards if reward is not None]),
            metrics.EVAL_TASKS: float(len(answers)),
            metrics.EVAL_FAILED_FRAC: metrics.mean([float(row["error"] is not None) for row in answers]),
        }
    )


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
