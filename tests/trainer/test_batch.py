from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.algorithms import algorithms
from rft_core.operators import Group
from rft_core.packing import pack
from rft_core.trainer.batch import TrainingRow, make_batch, plan_micro_batches
from rft_core.types import Source

GRPO = algorithms.build("grpo", {}, "algorithm")
SFT = algorithms.build("sft", {}, "algorithm")


def test_advantages_of_a_group_reach_its_rows(group: Callable[..., Group]) -> None:
    batch = make_batch([group([1.0, 0.0, 0.0, 0.0], [[5], [6], [7, 8], [9]])], GRPO)
    assert [row.advantage for row in batch.rows] == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)
    assert [row.tokens for row in batch.rows][2] == (3, 4, 7, 8)
    assert batch.rows[2].trained == (2, 3)
    assert batch.rows[2].inputs == (3, 4, 7)
    assert (batch.group_ids, batch.left_out) == (("g",), {})


def test_what_can_not_be_trained_is_left_out_of_statistics_and_rows(group: Callable[..., Group]) -> None:
    given_group = group([1.0, 0.0, None, 5.0, float("inf")], [[5], [6], [7], [8], [9]], errors=[None, None, "RewardError: no", None, None])
    attempts = list(given_group.attempts)
    attempts[3] = attempts[3].drop("drop_truncated", "cut off")
    batch = make_batch([replace(given_group, attempts=tuple(attempts))], GRPO)
    assert [(row.experience_id, round(row.advantage, 3)) for row in batch.rows] == [("e0", 0.707), ("e1", -0.707)]


def test_every_turn_of_an_attempt_has_its_advantage(group: Callable[..., Group]) -> None:
    one = group([1.0, 0.0], [[5], [6]])
    second_turn = replace(
        one.attempts[0].rows[0], experience_id="e0-1", tokens=(3, 4, 5, 9, 8), action_mask=(False,) * 4 + (True,), logprobs=(0.0,) * 5
    )
    both = replace(one.attempts[0], rows=(*one.attempts[0].rows, second_turn))
    batch = make_batch([replace(one, attempts=(both, one.attempts[1]))], GRPO)
    assert [row.experience_id for row in batch.rows] == ["e0", "e0-1", "e1"]
    assert batch.rows[0].advantage == batch.rows[1].advantage > 0


def test_groups_that_teach_nothing_are_counted_and_left_out(group: Callable[..., Group]) -> None:
    groups = [
        replace(group([1.0, 1.0], [[5], [6]]), group_id="all right"),
        replace(group([None, None], [[5], [6]]), group_id="not scored"),
        replace(group([1.0, 0.0], [[], []]), group_id="nothing said"),
        replace(group([1.0, 0.0], [[5], [6]]), group_id="good"),
    ]
    batch = make_batch(groups, GRPO)
    assert len(batch.groups) == 1
    assert batch.group_ids == ("good",)
    assert batch.left_out == {
        "all right": "every advantage is 0",
        "not scored": "no attempt can be trained",
        "nothing said": "no attempt can be trained",
    }


def test_without_rewards_every_live_attempt_is_trained(group: Callable[..., Group]) -> None:
    experts = group([None, None, 0.0], [[5], [6], [7]], errors=[None, "EmptyPromptError: no", None])
    batch = make_batch([replace(experts, attempts=(*experts.attempts[:2], experts.attempts[2].drop("drop_truncated", "")))], SFT)
    assert [(row.experience_id, row.advantage) for row in batch.rows] == [("e0", 1.0)]


def test_an_expert_did_not_sample_at_a_temperature(group: Callable[..., Group]) -> None:
    one = group([None], [[5]], temperature=0.6)
    expert = replace(one.attempts[0], rows=(replace(one.attempts[0].rows[0], source=Source.EXPERT),))
    assert make_batch([one], SFT).rows[0].temperature == 0.6
    assert make_batch([replace(one, attempts=(expert,))], SFT).rows[0].temperature == 1.0


def test_the_first_token_is_never_trained(row: Callable[..., TrainingRow]) -> None:
    assert row([], [4, 5]).trained == (1,)


TOKENS = st.lists(st.integers(3, 5), min_size=2, max_size=9)
GROUPS = st.lists(st.lists(TOKENS, min_size=1, max_size=4), min_size=1, max_size=5)


@settings(deadline=None)
@given(GROUPS, st.integers(1, 30), st.sampled_from(["packed", "padded"]))
def test_micro_batches_hold_every_row_within_the_budget(groups: list[list[list[int]]], budget: int, packing: str) -> None:
    rows = [[TrainingRow("", tuple(t), (False,) + (True,) * (len(t) - 1), (0.0,) * len(t), 1.0, 1.0) for t in g] for g in groups]
    plan = plan_micro_batches(rows, budget, packing)  # type: ignore[arg-type]
    assert [row for micro_batch in plan for row in micro_batch] == [row for group in rows for row in group]
    for micro_batch in plan:
        inputs = [row.inputs for row in micro_batch]
        size = len(pack(inputs)) if packing == "packed" else len(inputs) * max(len(i) for i in inputs)
        assert size <= budget or len(micro_batch) == 1


def test_groups_are_kept_whole_where_they_fit(row: Callable[..., TrainingRow]) -> None:
    groups = [[row(prompt, [5, 6]), row(prompt, [7, 8])] for prompt in ([3] * 4, [4] * 4, [5] * 4)]
    # A group is a tree of 4 + 1 + 1 nodes: two fit into 13, and a half group more would.
    plan = plan_micro_batches(groups, 13, "packed")
    assert [len(micro_batch) for micro_batch in plan] == [4, 2]
    # Padded, a group is 2 x 5 tokens.
    assert [len(micro_batch) for micro_batch in plan_micro_batches(groups, 13, "padded")] == [2, 2, 2]
