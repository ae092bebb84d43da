import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.algorithms.advantages import group_normalised

REWARDS = st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=1, max_size=16)


@settings(deadline=None)
@given(REWARDS)
def test_finite_centred_and_zero_without_reward(rewards: list[float]) -> None:
    rewards_G = np.array(rewards)
    advantages_G = group_normalised(rewards_G)
    assert np.isfinite(advantages_G).all()
    assert (advantages_G[np.isnan(rewards_G)] == 0).all()
    assert abs(advantages_G.sum()) < 1e-6
    # A standardised sample of n values is never farther out than (n - 1) / sqrt(n).
    assert np.abs(advantages_G).max() <= 4


@settings(deadline=None)
@given(REWARDS, st.integers(-3, 3), st.permutations(range(4)))
def test_order_and_shift_have_no_influence(rewards: list[float], shift: int, order: list[int]) -> None:
    rewards_G = np.round(np.resize(rewards, 4))
    np.testing.assert_allclose(group_normalised(rewards_G[order] + shift), group_normalised(rewards_G)[order], atol=1e-6)


@pytest.mark.parametrize("rewards", [[0.7], [float("nan")], [0.1 + 0.2, 0.3], [0.35] * 7, [1e6 / 3] * 5, [0.0, 0.0]])
def test_no_spread_is_no_advantage(rewards: list[float]) -> None:
    assert (group_normalised(np.array(rewards)) == 0).all()


def test_infinite_rewards_do_not_count() -> None:
    np.testing.assert_allclose(group_normalised(np.array([1.0, 2.0, 3.0, np.inf, -np.inf])), [-1, 0, 1, 0, 0], atol=1e-5)
