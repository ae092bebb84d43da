"""Every metric: its name, its unit, what it means. No other module names one by a string."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a step, an evaluation or a run."""

    name: str
    unit: str
    meaning: str


_ALL: dict[str, Metric] = {}


def _metric(name: str, unit: str, meaning: str) -> str:
    _ALL[name] = Metric(name, unit, meaning)
    return name


REWARD_MEAN = _metric("rollout/reward_mean", "reward", "mean raw reward of the step's scored attempts")
REWARD_STD = _metric("rollout/reward_std", "reward", "its standard deviation over attempts")
RESPONSE_TOKENS = _metric("rollout/response_tokens_mean", "tokens", "mean length of an answer, raw, truncated ones included")
TRUNCATED_FRAC = _metric("rollout/truncated_frac", "1", "attempts whose answer reached the token limit")
FAILED_FRAC = _metric("rollout/failed_frac", "1", "attempts that ended in an error")
NUM_ATTEMPTS = _metric("rollout/num_attempts", "attempts", "attempts of the step, failed ones included")

NUM_GROUPS = _metric("batch/num_groups", "groups", "groups that the step was trained on")
DROPPED_GROUPS = _metric("batch/dropped_groups", "groups", "groups left out by operators")
LEFT_OUT = _metric("batch/left_out", "groups", "groups that selection passed over: stale, cooling down, or not matching")
STALENESS_MAX = _metric("batch/staleness_max", "versions", "version the step starts from, minus the oldest version that sampled its batch")
STALENESS_MEAN = _metric("batch/staleness_mean", "versions", "the same, mean over the groups of the batch")
MOST_BEHIND = 8
"""From so many versions on, groups are counted together."""
_BEHIND = [
    _metric(
        f"batch/staleness_{versions}{'_or_more' if versions == MOST_BEHIND else ''}",
        "groups",
        f"groups that lay {versions} versions behind",
    )
    for versions in range(MOST_BEHIND + 1)
]

LOSS = _metric("trainer/loss", "nat", "the loss of the whole batch, mean over its updates")
GRAD_NORM = _metric("trainer/grad_norm", "1", "global norm of the gradient before clipping, mean over updates")
LEARNING_RATE = _metric("trainer/learning_rate", "1", "of the step's last update")
CLIP_FRAC = _metric("trainer/clip_frac", "1", "trained tokens whose ratio was clipped")
LOGPROB_GAP_MEAN = _metric("trainer/logprob_gap_mean", "nat", "mean absolute difference of the trainer's and the sampler's log-prob")
LOGPROB_GAP_MAX = _metric("trainer/logprob_gap_max", "nat", "its maximum")
ADVANTAGE_STD = _metric("trainer/advantage_std", "1", "standard deviation of the advantages over trained attempts")
NUM_TOKENS = _metric("trainer/num_tokens", "tokens", "trained tokens of the step")
NUM_UPDATES = _metric("trainer/num_updates", "updates", "optimizer updates made in the step")
SKIPPED_UPDATES = _metric("trainer/skipped_updates", "updates", "updates skipped for a loss or gradient that was not finite")

EVAL_EXACT = _metric("evaluation/exact", "1", "held-out tasks answered exactly, greedily")
EVAL_REWARD = _metric("evaluation/reward", "reward", "mean reward on held-out tasks, greedily")
EVAL_FAILED_FRAC = _metric("evaluation/failed_frac", "1", "held-out tasks whose attempt ended in an error; they count as wrong")
EVAL_TASKS = _metric("evaluation/num_tasks", "tasks", "held-out tasks that were scored")

ROLLOUT_S = _metric("time/rollout_s", "s", "generation and scoring")
WAIT_S = _metric("time/wait_s", "s", "waiting for the batch, beside explorers that go on")
SHAPE_S = _metric("time/shape_s", "s", "operators and overlay")
TRAIN_S = _metric("time/train_s", "s", "reading the batch and updating the policy")
SYNC_S = _metric("time/sync_s", "s", "publishing the weights")
CHECKPOINT_S = _metric("time/checkpoint_s", "s", "writing the trainer's state")


def described() -> list[Metric]:
    """All metrics, in the order in which they are declared."""
    return list(_ALL.values())


def staleness(behind: Mapping[int, int]) -> dict[str, float]:
    """The histogram of a batch.

    Args:
        behind: By versions, how many groups lay so far behind the version that the step starts from.
    """
    counts = Counter[str]()
    for versions, groups in behind.items():
        counts[_BEHIND[min(versions, MOST_BEHIND)]] += groups
    total = sum(behind.values())
    mean_behind = sum(versions * groups for versions, groups in behind.items()) / total if total else 0.0
    return {STALENESS_MAX: float(max(behind, default=0)), STALENESS_MEAN: mean_behind, **{name: float(n) for name, n in counts.items()}}


def known(figures: dict[str, float]) -> dict[str, float]:
    """The figures that could be measured: those that are numbers."""
    return {name: value for name, value in figures.items() if not np.isnan(value)}


def mean(values: list[float]) -> float:
    """The mean; NaN of nothing."""
    return float(np.mean(values)) if values else float("nan")


def std(values: list[float]) -> float:
    """The population standard deviation; NaN of nothing."""
    return float(np.std(values)) if values else float("nan")


SHOWN = (
    ("reward", REWARD_MEAN, ".3f"),
    ("loss", LOSS, ".4f"),
    ("grad", GRAD_NORM, ".2f"),
    ("answer", RESPONSE_TOKENS, ".1f"),
    ("failed", FAILED_FRAC, ".0%"),
)
"""What one line says of a step: label, metric, format."""


def shown(figures: Mapping[str, float]) -> str:
    """The figures of a step that people see while it runs."""
    return "  ".join(f"{label} {format(figures[name], form)}" for label, name, form in SHOWN if name in figures)


def step_line(step: int, last: int, figures: Mapping[str, float]) -> str:
    """A step in one line."""
    return f"step {step}/{last}  {shown(figures)}"
