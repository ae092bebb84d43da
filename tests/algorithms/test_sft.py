import numpy as np

from rft_core.algorithms import algorithms


def test_every_attempt_that_can_be_trained_weighs_the_same() -> None:
    algorithm = algorithms.build("sft", {}, "algorithm")
    assert not algorithm.needs.rollout and not algorithm.needs.rewards and algorithm.needs.min_group_size == 1
    assert algorithm.advantages(np.array([1.0, np.nan, 1.0])).tolist() == [1.0, 0.0, 1.0]
