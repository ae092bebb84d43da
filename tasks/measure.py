"""The figures of a step's rollout, from the rows that it stored."""

from rft_core import metrics
from rft_core.types import Experience, StopReason
from tasks.session import Session


def measure_rollout(session: Session, step: int) -> dict[str, float]:
    """Figures over every attempt of a step, failed, truncated and dropped ones included."""
    group_ids = session.catalog.segments.groups_of_step(step)
    attempts = [rows for group in session.store.groups(group_ids) for rows in _attempts(group.rows)]
    if not attempts:
        return {}
    answered = [rows for rows in attempts if rows[-1].error is None]
    rewards = [rows[-1].reward for rows in answered if rows[-1].reward is not None]
    lengths = [float(sum(sum(row.action_mask) for row in rows)) for rows in answered]
    fates = session.catalog.leases.of_step(step)
    figures = {
        metrics.NUM_ATTEMPTS: float(len(attempts)),
        metrics.REWARD_MEAN: metrics.mean(rewards),
        metrics.REWARD_STD: metrics.std(rewards),
        metrics.RESPONSE_TOKENS: metrics.mean(lengths),
        metrics.TRUNCATED_FRAC: metrics.mean([float(rows[-1].stop_reason is StopReason.LENGTH) for rows in answered]),
        metrics.FAILED_FRAC: 1.0 - len(answered) / len(attempts),
        metrics.DROPPED_GROUPS: float(sum(fate == "dropped" for fate in fates.values())),
    }
    return metrics.known(figures)


def _attempts(rows: tuple[Experience, ...]) -> list[list[Experience]]:
    by_attempt: dict[int, list[Experience]] = {}
    for row in rows:
        by_attempt.setdefault(row.attempt, []).append(row)
    return list(by_attempt.values())
