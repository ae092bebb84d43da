"""Public reports about advantages and about which attempts are trained. Each test cites its report."""

import numpy as np
import pytest

from rft_core.algorithms import algorithms
from rft_core.algorithms.advantages import group_normalised
from rft_core.operators import Attempt, Group
from rft_core.trainer.batch import make_batch
from rft_core.types import Experience, StopReason

NAN = float("nan")


def _attempt(
    reward: float | None, prompt: tuple[int, ...] = (1, 2), completion: tuple[int, ...] = (3, 4), error: str | None = None
) -> Attempt:
    row = Experience(
        experience_id=f"{reward}",
        group_id="g",
        task_id="t",
        lease_id="l",
        attempt=0,
        turn_index=0,
        explorer="x",
        policy_version=0,
        policy_version_end=0,
        tokens=prompt + completion,
        action_mask=(False,) * len(prompt) + (True,) * len(completion),
        logprobs=(0.0,) * len(prompt) + (-1.0,) * len(completion),
        temperature=1.0,
        prompt_length=len(prompt),
        prompt_text="",
        response_text="",
        reward=reward,
        stop_reason=StopReason.LENGTH,
        error=error,
    )
    return Attempt((row,), reward)


def test_b02_attempts_without_reward_are_no_part_of_the_baseline() -> None:
    """trl PR #5902: [1, 0, None] has mean and spread of {1, 0}; None gets 0 and is not trained."""
    half = np.sqrt(0.5)
    expected = half / (half + 1e-6) * half
    np.testing.assert_allclose(group_normalised(np.array([1.0, 0.0, NAN])), [expected, -expected, 0.0], rtol=1e-5)
    group = Group("g", (_attempt(1.0), _attempt(0.0), _attempt(None, error="RewardError: no")))
    batch = make_batch([group], algorithms.build("grpo", {}, "algorithm"))
    assert [row.experience_id for row in batch.rows] == ["1.0", "0.0"]


def test_b03_one_reward_among_missing_ones_is_no_signal() -> None:
    """trl PR #5773: a group of None x 7 and 1.0 made its spread, and so every advantage, NaN."""
    assert group_normalised(np.array([NAN] * 7 + [1.0])).tolist() == [0.0] * 8
    batch = make_batch([Group("g", (*[_attempt(None)] * 7, _attempt(1.0)))], algorithms.build("grpo", {}, "algorithm"))
    assert batch.groups == () and batch.left_out == {"g": "every advantage is 0"}


@pytest.mark.parametrize("reward", [0.35, 0.3, 0.1, 1 / 3, 1e5 + 0.1])
@pytest.mark.parametrize("size", [2, 7, 8, 13])
def test_b07_equal_rewards_have_no_spread(reward: float, size: int) -> None:
    """NeMo-RL PR #4161: the one-pass float32 spread of equal rewards at .35 is 1.5e-4, not 0, and blew advantages up."""
    equal = np.full(size, reward)
    assert group_normalised(equal).tolist() == [0.0] * size
    # Stored in float32 they are equal still.
    assert group_normalised(equal.astype(np.float32).astype(np.float64)).tolist() == [0.0] * size


def test_b07_one_other_reward_is_bounded() -> None:
    """NeMo-RL PR #4161: seven equal rewards and another one: a closed form, nowhere near a thousandfold."""
    advantages_G = group_normalised(np.array([0.35] * 7 + [1.0]))
    np.testing.assert_allclose(advantages_G, [-1 / np.sqrt(8)] * 7 + [7 / np.sqrt(8)], rtol=1e-4)


@pytest.mark.parametrize("base", [1.0, 2.0])
def test_b08_small_spread_is_not_lost(base: float) -> None:
    """verl PR #6348: [1.00000, 1.00001] gives +-0.6195 with delta 1e-6; a vectorised one-pass variance gave +-0.005."""
    np.testing.assert_allclose(group_normalised(np.array([base, base + 1e-5])), [-0.6195, 0.6195], atol=5e-5)


@pytest.mark.parametrize(
    "rewards",
    [[1.0, 0.0, 0.0, 0.0], [NAN, 1.0, 0.0, NAN], [NAN] * 4, [1.0], [NAN], [float("inf"), 1.0, 0.0], [1e300, -1e300, 0.0], [5e-324, 0.0]],
)
def test_d32_advantages_are_finite_and_bounded(rewards: list[float]) -> None:
    """NeMo-RL #1518, trl PR #5773: whatever the rewards, advantages are finite, bounded, and 0 where there is no reward."""
    advantages_G = group_normalised(np.array(rewards))
    assert np.isfinite(advantages_G).all()
    assert np.abs(advantages_G).max() <= np.sqrt(len(rewards))
    assert (advantages_G[~np.isfinite(rewards)] == 0).all()


def test_b38_dropped_attempts_are_not_trained_but_keep_their_raw_length() -> None:
    """trl #3476: where truncated rows are masked, the logged length must still be the raw one."""
    truncated = _attempt(0.5, completion=(3,) * 9).drop("drop_truncated", "reached the token limit")
    group = Group("g", (_attempt(1.0), _attempt(0.0), truncated))
    batch = make_batch([group], algorithms.build("grpo", {}, "algorithm"))
    assert sum(len(row.trained) for row in batch.rows) == 4
    assert [attempt.num_response_tokens for attempt in group.attempts] == [2, 2, 9]


def test_b39_a_row_whose_answer_was_cut_away_is_skipped() -> None:
    """trl PR #5826 (#5662): a prompt longer than the limit left no token to train on, and the loss was NaN."""
    batch = make_batch(
        [Group("g", (_attempt(None, completion=()),)), Group("h", (_attempt(None),))], algorithms.build("sft", {}, "algorithm")
    )
    assert len(batch.groups) == 1
    assert batch.left_out == {"g": "no attempt can be trained"}
    nothing = make_batch([Group("g", (_attempt(None, completion=()),))], algorithms.build("sft", {}, "algorithm"))
    assert nothing.groups == ()
