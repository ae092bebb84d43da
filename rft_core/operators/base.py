"""What every experience operator gives."""

from dataclasses import dataclass, replace
from typing import Protocol

from rft_core.registry import Registry
from rft_core.types import Experience


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a group as operators see it: its rows, its reward so far, and whether it was dropped."""

    rows: tuple[Experience, ...]
    """One row, or one a turn."""
    reward: float | None
    """Shaped so far; null for an attempt that failed or is not scored yet."""
    dropped_by: str | None = None
    """The operator that left it out of training."""
    drop_reason: str = ""

    @property
    def num_response_tokens(self) -> int:
        """Tokens that the policy wrote, over all turns."""
        return sum(sum(row.action_mask) for row in self.rows)

    def drop(self, operator: str, reason: str) -> "Attempt":
        """The same attempt, left out; the first operator to do so is kept."""
        return self if self.dropped_by else replace(self, dropped_by=operator, drop_reason=reason)


@dataclass(frozen=True, slots=True)
class Group:
    """The attempts at one leased task."""

    group_id: str
    attempts: tuple[Attempt, ...]

    def live(self) -> tuple[Attempt, ...]:
        """The attempts that have a reward and were not dropped."""
        return tuple(a for a in self.attempts if a.reward is not None and a.dropped_by is None)

    def drop(self, operator: str, reason: str) -> "Group":
        """The same group with every attempt left out."""
        return replace(self, attempts=tuple(a.drop(operator, reason) for a in self.attempts))


class Operator(Protocol):
    """A pure function over groups: the same input gives the same output, on any machine, at any time."""

    needs_rewards: bool
    """Whether it looks at rewards: it then has no place in a run that learns without them."""

    def __call__(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Return the same groups in the same order, with rewards changed or attempts marked as dropped."""
        ...


operators: Registry[Operator] = Registry("operator", "rft_core.operators")
"""Operators are built as `cls(config, max_tokens=int)`; `max_tokens` is `rollout.max_tokens`."""
