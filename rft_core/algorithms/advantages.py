"""Advantages of the attempts of one group, in float64.

A reward that is NaN or infinite says nothing: its attempt gets advantage 0 and does not count in the mean or the spread.
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ROUNDING = 16 * np.finfo(np.float64).eps
"""Rewards that differ by no more than this share of the largest are equal: the difference is rounding.

Without it, attempts scored 0.1 + 0.2 and 0.3 would make a group that looks as if it had something to teach.
"""


def centred(rewards_G: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Rewards minus their mean over the attempts that have one.

    Args:
        rewards_G: Shape (G,), float64, NaN where an attempt has no reward.

    Returns:
        Shape (G,), exactly 0 where there is no reward and in a group without spread;
        and shape (G,), true where an attempt has a finite reward.
    """
    valid_G = np.isfinite(rewards_G)
    centred_G = np.zeros_like(rewards_G, dtype=np.float64)
    rewards = rewards_G[valid_G]
    if rewards.size and np.ptp(rewards) > ROUNDING * np.abs(rewards).max():
        centred_G[valid_G] = rewards - rewards.mean()
    return centred_G, valid_G


def group_normalised(rewards_G: Floats, delta: float = 1e-6) -> Floats:
    """Group-relative advantages: (reward - mean) / (standard deviation + delta), Shao et al. 2024 (GRPO), section 4.1.2.

    The standard deviation is the unbiased one (ddof 1), as in verl; peers that use the biased one get larger advantages
    in small groups. It is taken from the centred rewards (two passes), which is exact where the one-pass form
    E[x^2] - E[x]^2 leaves a spread where there is none.

    Args:
        rewards_G: Shape (G,), float64, NaN where an attempt has no reward.
        delta: Added to the standard deviation, in units of reward.

    Returns:
        Shape (G,), finite; all 0 if fewer than two attempts have a reward, or if these are all equal.
    """
    centred_G, valid_G = centred(rewards_G)
    largest = np.abs(centred_G).max(initial=0.0)
    if largest == 0:
        return centred_G
    # Squares of the rewards themselves may overflow.
    std = largest * np.sqrt(((centred_G / largest) ** 2).sum() / (valid_G.sum() - 1))
    normalised_G: Floats = centred_G / (std + delta)
    return normalised_G
