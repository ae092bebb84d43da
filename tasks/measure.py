"""The figures of a step's rollout, from the rows that it stored."""

from rft_core import metrics
from rft_core.catalog import Claim
from rft_core.types import StopReason
from tasks.session import Session


def measure_rollout(session: Session, claim: Claim) -> dict[str, float]:
    """Figures over every attempt that was made for a step, failed, truncated and dropped ones included.

    Beside explorers that go on those are the attempts that came since the batch before was chosen. Rewards are those before any shaping,
    labels included, as they stood when the step's batch was chosen.
    """
    statuses = groups_for(session, claim)
    groups = session.store.groups(session.store.kept(list(statuses)), at=claim.snapshot["sequence"])
    attempts = [(rows, group.reward_of(rows)) for group in groups for rows in group.attempts()]
    if not attempts:
        return {}
    answered = [rows for rows, _ in attempts if rows[-1].error is None]
    rewards = [reward for rows, reward in attempts if rows[-1].error is None and reward is not None]
    lengths = [float(sum(sum(row.action_mask) for row in rows)) for rows in answered]
    figures = {
        metrics.NUM_ATTEMPTS: float(len(attempts)),
        metrics.REWARD_MEAN: metrics.mean(rewards),
        metrics.REWARD_STD: metrics.std(rewards),
        metrics.RESPONSE_TOKENS: metrics.mean(lengths),
        metrics.TRUNCATED_FRAC: metrics.mean([float(rows[-1].stop_reason is StopReason.LENGTH) for rows in answered]),
        metrics.FAILED_FRAC: 1.0 - len(answered) / len(attempts),
        metrics.DROPPED_GROUPS: float(sum(status == "dropped" for status in statuses.values())),
    }
    return metrics.known(figures)


def groups_for(session: Session, claim: Claim) -> dict[str, str]:
    """The groups that were tried for a step, each with its status."""
    segments = session.catalog.segments
    if session.config.mode == "sync":
        return segments.groups_of_step(claim.step)
    before = session.catalog.claims.find(claim.step - 1)
    return segments.groups_between(before.snapshot["sequence"] if before else 0, claim.snapshot["sequence"])
