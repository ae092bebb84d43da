"""The figures of a step's rollout, from the rows that it stored."""

from rft_core import metrics
from rft_core.catalog import Claim
from rft_core.types import StopReason
from tasks.session import Session


def measure_rollout(session: Session, claim: Claim) -> dict[str, float]:
    """Figures over every attempt that was made for a step, failed, truncated and dropped ones included.

    Rewards are those before any shaping, labels included, as they stood when the step's batch was chosen.
    """
    group_ids = session.store.kept(session.catalog.segments.groups_of_step(claim.step))
    groups = session.store.groups(group_ids, at=claim.snapshot["sequence"])
    attempts = [(rows, group.reward_of(rows)) for group in groups for rows in group.attempts()]
    if not attempts:
        return {}
    answered = [rows for rows, _ in attempts if rows[-1].error is None]
    rewards = [reward for rows, reward in attempts if rows[-1].error is None and reward is not None]
    lengths = [float(sum(sum(row.action_mask) for row in rows)) for rows in answered]
    fates = session.catalog.leases.of_step(claim.step)
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
