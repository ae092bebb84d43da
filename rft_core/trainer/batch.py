"""From scored groups to what the model is fed: rows with advantages, and micro-batches. No torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from rft_core.algorithms import Algorithm
from rft_core.operators import Attempt, Group
from rft_core.types import Experience, Source

Packing = Literal["packed", "padded"]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One sequence to train on. `tokens`, `action_mask` and `old_logprobs` have one length."""

    experience_id: str
    tokens: tuple[int, ...]
    action_mask: tuple[bool, ...]
    """True where the token is trained. The first token never is: nothing comes before it that could predict it."""
    old_logprobs: tuple[float, ...]
    """Natural log-probs under the sampling distribution where `action_mask` is true, NaN where they are not known."""
    advantage: float
    temperature: float
    """At which the tokens were sampled; 0 (greedy) counts as 1, as it does for `old_logprobs`. 1 for an expert's tokens."""

    @property
    def trained(self) -> tuple[int, ...]:
        """Positions of the trained tokens, ascending."""
        return tuple(position for position, action in enumerate(self.action_mask) if action and position)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The tokens that must pass the model: all before the last trained one."""
        return self.tokens[: self.trained[-1]]


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one step."""

    groups: tuple[tuple[TrainingRow, ...], ...]
    """Each with at least one row, each row with at least one trained token."""
    group_ids: tuple[str, ...] = ()
    """Of these groups."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Groups without anything to train or to learn from, with the reason. They count in no denominator of the loss."""

    @property
    def rows(self) -> tuple[TrainingRow, ...]:
        """All rows, group by group."""
        return tuple(row for group in self.groups for row in group)


def make_batch(groups: Sequence[Group], algorithm: Algorithm) -> Batch:
    """Compute advantages and keep what can be trained.

    Not trained are: attempts that failed, that an operator dropped, or that have no finite reward (an algorithm that
    needs no rewards does not look at them); rows in which the policy wrote nothing; and whole groups in which no row
    is left, or in which all advantages are 0. The last teach nothing, and if they counted in the denominator of the
    loss a batch with many of them would take smaller steps.

    Args:
        groups: In the order in which they are trained.
        algorithm: Gives the advantages. One that needs no rewards is given 1 for each attempt that can be trained.
    """
    trained: list[tuple[TrainingRow, ...]] = []
    group_ids: list[str] = []
    left_out: dict[str, str] = {}
    for group in groups:
        rows = _training_rows(group, algorithm)
        if any(row.advantage for row in rows):
            trained.append(rows)
            group_ids.append(group.group_id)
        else:
            left_out[group.group_id] = "every advantage is 0" if rows else "no attempt can be trained"
    return Batch(tuple(trained), tuple(group_ids), left_out)


def _training_rows(group: Group, algorithm: Algorithm) -> tuple[TrainingRow, ...]:
    rewards_G = np.array([_reward(attempt, algorithm.needs.rewards) for attempt in group.attempts], dtype=np.float64)
    advantages_G = algorithm.advantages(rewards_G)
    candidates = (
        _training_row(row, float(advantage))
        for attempt, reward, advantage in zip(group.attempts, rewards_G, advantages_G, strict=True)
        if not np.isnan(reward)
        for row in attempt.rows
    )
    return tuple(row for row in candidates if row.trained)


def _training_row(row: Experience, advantage: float) -> TrainingRow:
    temperature = row.temperature if row.source is Source.POLICY else 1.0
    return TrainingRow(row.experience_id, row.tokens, row.action_mask, row.logprobs, advantage, temperature)


def _reward(attempt: Attempt, needs_rewards: bool) -> float:
    """The attempt's reward, or 1 where rewards are not needed; NaN if the attempt can't be trained."""
    if attempt.dropped_by is not None or any(row.error is not None for row in attempt.rows):
        return float("nan")
    if not needs_rewards:
        return 1.0
    return attempt.reward if attempt.reward is not None and np.isfinite(attempt.reward) else float("nan")


def plan_micro_batches(groups: Iterable[Sequence[TrainingRow]], max_tokens: int, packing: Packing) -> list[list[TrainingRow]]:
    """Split groups into micro-batches within a budget of tokens.

    Groups are kept whole where they fit, so that their prompt passes the model once; a larger one is split by
    sequences. A sequence that is longer than the budget is a micro-batch of its own.

    Args:
        groups: Rows with at least one trained token each.
        max_tokens: Most tokens that pass the model at once: nodes of the prefix tree when packed, padding included when padded.
        packing: How the policy will lay the rows out.
    """
    plan: list[list[TrainingRow]] = []
    load = _Load(packing)
    for group in groups:
        # A group that does not fit beside the others starts a new micro-batch, and is only split if it does not fit there either.
        for block in [group] if load.alone(group) <= max_tokens else [[row] for row in group]:
            if not plan or load.with_rows(block) > max_tokens:
                plan.append([])
                load = _Load(packing)
            plan[-1].extend(block)
            load.add(block)
    return plan


class _Load:
    """Counts the tokens that the rows of one micro-batch put through the model."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._children: dict[tuple[int, int], int] = {}
        self._num_rows = 0
        self._longest = 0

    def alone(self, rows: Sequence[TrainingRow]) -> int:
        """Tokens of these rows in a micro-batch of their own."""
        return _Load(self._packing).with_rows(rows)

    def with_rows(self, rows: Sequence[TrainingRow]) -> int:
        """Tokens if these rows were added."""
        if self._packing == "padded":
            return (self._num_rows + len(rows)) * max(self._longest, *(len(row.inputs) for row in rows))
        return len(self._children) + len(self._new_nodes(rows))

    def add(self, rows: Sequence[TrainingRow]) -> None:
        self._num_rows += len(rows)
        self._longest = max(self._longest, *(len(row.inputs) for row in rows))
        if self._packing == "packed":
            self._children |= self._new_nodes(rows)

    def _new_nodes(self, rows: Sequence[TrainingRow]) -> dict[tuple[int, int], int]:
        """The nodes that `rft_core.packing.pack` would append for these rows."""
        new: dict[tuple[int, int], int] = {}
        for row in rows:
            node = -1
            for token in row.inputs:
                edge = (node, token)
                child = self._children.get(edge, new.get(edge))
                if child is None:
                    child = new[edge] = len(self._children) + len(new)
                node = child
        return new
