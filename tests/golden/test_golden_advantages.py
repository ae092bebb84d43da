"""Known answers of the advantages, in float64, worked out by hand."""

import numpy as np
import numpy.typing as npt
import pytest

from rft_core.algorithms.advantages import group_normalised

NAN = float("nan")
HALF = 1 / np.sqrt(2)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        # Mean 1/2, unbiased std sqrt(1/2).
        ([1, 0], [HALF, -HALF]),
        # Mean 1/4, unbiased std 1/2.
        ([1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]),
        # Mean 2, unbiased std 1.
        ([1, 2, 3], [-1, 0, 1]),
        # Mean 5, unbiased std sqrt(32 / 7).
        ([2, 4, 4, 4, 5, 5, 7, 9], np.array([-3, -1, -1, -1, 0, 0, 2, 4]) / np.sqrt(32 / 7)),
        # What has no reward takes no part.
        ([1, NAN, 2, 3, NAN], [-1, 0, 0, 1, 0]),
    ],
)
def test_group_normalised_without_delta(rewards: list[float], expected: npt.ArrayLike) -> None:
    np.testing.assert_allclose(group_normalised(np.array(rewards, dtype=np.float64), delta=1e-15), expected, rtol=1e-12, atol=1e-12)


def test_delta_is_added_to_the_standard_deviation() -> None:
    np.testing.assert_allclose(group_normalised(np.array([1.0, 2.0, 3.0]), delta=1.0), [-0.5, 0.0, 0.5], rtol=1e-15)
