"""Train on groups of the policy and of experts in an exact ratio."""

import heapq
import math
from collections import Counter
from collections.abc import Sequence

from pydantic import Field

from rft_core.buffer.selection.base import Pool, Wanted, selectors, take
from rft_core.catalog import Candidate, Choice
from rft_core.registry import ExtensionConfig


class ExpertMixConfig(ExtensionConfig):
    """Arguments of `expert_mix`."""

    expert_frac: float = Field(default=0.25, ge=0.0, le=1.0)
    """Share of a batch's groups that experts or people wrote, to the nearest whole group; at least one of each kind, but for 0 and 1."""


@selectors.register("expert_mix", config=ExpertMixConfig)
class ExpertMix:
    """Mixes both kinds, the oldest of each first. A batch that can't be filled gets smaller, but its ratio stays exact."""

    def __init__(self, config: ExpertMixConfig) -> None:
        self._config = config

    def score(self, rewards: Sequence[float]) -> float | None:
        return None

    def choose(self, pool: Pool, wanted: Wanted) -> Choice:
        num_experts = self._num_experts(wanted.count)
        parts = math.gcd(num_experts, wanted.count)
        passed_over: Counter[str] = Counter()
        written = heapq.merge(pool.by("oldest", "expert"), pool.by("oldest", "human"), key=_age)
        experts = take(written, wanted, passed_over, num_experts)
        policy = take(pool.by("oldest", "policy"), wanted, passed_over, wanted.count - num_experts)
        per_part = num_experts // parts, (wanted.count - num_experts) // parts
        whole = min(len(found) // each for found, each in zip((experts, policy), per_part, strict=True) if each)
        for name, found, each in (
            ("no_policy_group_to_mix_with", experts, per_part[0]),
            ("no_expert_group_to_mix_with", policy, per_part[1]),
        ):
            if len(found) > whole * each:
                passed_over[name] += len(found) - whole * each
        return Choice(_mixed(experts, policy, per_part, whole), passed_over)

    def _num_experts(self, count: int) -> int:
        nearest = round(count * self._config.expert_frac)
        return min(max(nearest, 1), count - 1) if count > 1 and 0.0 < self._config.expert_frac < 1.0 else nearest


def _age(group: Candidate) -> tuple[int, int, int]:
    return group.lowest_version, group.step, group.slot


def _mixed(experts: list[Candidate], policy: list[Candidate], per_part: tuple[int, int], whole: int) -> list[Candidate]:
    """Part by part, so that mini-batches have the ratio too."""
    of_experts, of_policy = per_part
    return [
        group
        for part in range(whole)
        for group in (*policy[part * of_policy : (part + 1) * of_policy], *experts[part * of_experts : (part + 1) * of_experts])
    ]
