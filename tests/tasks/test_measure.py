"""The figures of a rollout are those of what happened, whatever operators made of it."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rft_core import metrics
from rft_core.buffer import Shaped
from rft_core.catalog import Claim
from rft_core.types import StopReason
from tasks.measure import measure_rollout
from tasks.session import Session
from tests.buffer.table import Table, row


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    opened = Table(tmp_path / "run", pipeline="p")
    yield opened
    opened.close()


def measure(table: Table, step: int = 1, at: int | None = None, mode: str = "sync") -> dict[str, float]:
    """A session is asked for nothing else than its catalog, its store and its mode."""
    sequence = table.catalog.segments.snapshot() if at is None else at
    claim = Claim(step, [], {"sequence": sequence, "pipeline": "p", "staleness": 0}, {})
    session = SimpleNamespace(catalog=table.catalog, store=table.store, config=SimpleNamespace(mode=mode))
    return measure_rollout(cast(Session, session), claim)


def sampled(length: int, **changes: Any) -> dict[str, Any]:
    tokens = {"tokens": (5,) * (2 + length), "action_mask": (False,) * 2 + (True,) * length, "logprobs": (0.0,) * (2 + length)}
    return {**tokens, "prompt_length": 2, **changes}


def test_every_attempt_counts_truncated_and_dropped_ones_too(table: Table) -> None:
    first, second = table.lease(2)
    rows = [
        row(first, 0, reward=1.0, **sampled(2)),
        row(first, 1, reward=0.0, stop_reason=StopReason.LENGTH, **sampled(9)),
        row(first, 2, reward=None, error="DeadlineError: late", **sampled(5)),
        row(first, 3, reward=None, **sampled(1)),
        row(second, 0, reward=0.5, **sampled(4)),
        row(second, 1, reward=0.5, **sampled(4)),
        row(second, 2, reward=None, error="RewardError: no", stop_reason=None, tokens=(), action_mask=(), logprobs=()),
        row(second, 3, reward=0.5, **sampled(4)),
    ]
    table.store.append("a", rows, "e", 1)
    dropped = [Shaped(one.experience_id, one.reward, "drop_no_signal", "all rewards equal") for one in rows[4:]]
    table.store.overlay("a", {rows[4].group_id: dropped}, [], {rows[4].group_id: "drop_no_signal: all rewards equal"})
    assert measure(table) == pytest.approx(
        {
            metrics.NUM_ATTEMPTS: 8.0,
            metrics.REWARD_MEAN: 0.5,
            metrics.REWARD_STD: 0.1**0.5,
            metrics.RESPONSE_TOKENS: 4.0,
            metrics.TRUNCATED_FRAC: 1 / 6,
            metrics.FAILED_FRAC: 0.25,
            metrics.DROPPED_GROUPS: 1.0,
        }
    )


def test_the_turns_of_an_attempt_are_one_answer(table: Table) -> None:
    (lease,) = table.lease()
    turns = [row(lease, attempt, turn, reward=float(attempt), **sampled(3 + attempt)) for attempt in range(2) for turn in range(2)]
    table.store.append("a", turns, "e", 1)
    figures = measure(table)
    assert (figures[metrics.NUM_ATTEMPTS], figures[metrics.RESPONSE_TOKENS], figures[metrics.REWARD_MEAN]) == (2.0, 7.0, 0.5)


def test_refills_of_a_step_count(table: Table) -> None:
    for key in ("a", "b"):
        table.append(key, table.lease())
    table.append("c", table.lease(step=2))
    assert measure(table)[metrics.NUM_ATTEMPTS] == 4.0
    assert measure(table, step=2)[metrics.NUM_ATTEMPTS] == 2.0


def test_labels_are_rewards_as_far_as_they_were_there_when_the_batch_was_chosen(table: Table) -> None:
    rows = table.append("a", table.lease(), rewards=(None, 0.0))
    table.label({rows[0].experience_id: 1.0})
    at = table.catalog.segments.snapshot()
    table.label({rows[1].experience_id: 1.0})
    assert measure(table, at=at)[metrics.REWARD_MEAN] == 0.5
    assert measure(table)[metrics.REWARD_MEAN] == 1.0


def test_what_cannot_be_measured_is_left_out(table: Table) -> None:
    assert measure(table) == {}
    table.append("a", table.lease(), (None, None), error="RewardError: no")
    assert measure(table) == {metrics.NUM_ATTEMPTS: 2.0, metrics.FAILED_FRAC: 1.0, metrics.DROPPED_GROUPS: 0.0}


def test_beside_explorers_those_count_that_came_since_the_batch_before(table: Table) -> None:
    generation = table.take_over()
    table.append("a", table.lease(), rewards=(1.0,))
    first = table.claim(1, generation)
    table.append("b", table.lease(2, step=7), rewards=(0.0, 0.0))
    second = table.claim(2, generation)
    table.append("c", table.lease(), rewards=(1.0,))
    found = [measure(table, claim.step, claim.snapshot["sequence"], mode="async") for claim in (first, second)]
    assert [(figures[metrics.NUM_ATTEMPTS], figures[metrics.REWARD_MEAN]) for figures in found] == [(1.0, 1.0), (4.0, 0.0)]
