"""Group relative policy optimisation."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat

from rft_core.algorithms.advantages import group_normalised
from rft_core.algorithms.aggregation import AggregationConfig
from rft_core.algorithms.base import Needs, algorithms
from rft_core.metrics import CLIP_FRAC

if TYPE_CHECKING:
    import torch

    from rft_core.algorithms.losses import LossInputs


class GRPOConfig(AggregationConfig):
    """Arguments of `grpo`."""

    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """How far below 1 the ratio of policy and sampler may fall before it stops to count."""
    clip_high: PositiveFloat = 0.2
    """How far above 1 it may rise."""
    delta: PositiveFloat = 1e-6
    """Added to the standard deviation of a group's rewards."""


@algorithms.register("grpo", config=GRPOConfig)
class GRPO:
    """Group relative policy optimisation: an attempt is as good as it is better than the others at the same task.

    A_i = (r_i - mean(r)) / (std(r) + delta), std unbiased
    L = -mean over answers of mean over tokens of min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)

    Reference: Shao et al. 2024, DeepSeekMath, equation 3, without the penalty for leaving a reference policy.
    Assumes that the attempts of a group are samples of one policy at one task; groups whose rewards are all equal teach nothing.
    """

    needs = Needs(min_group_size=2)

    def __init__(self, config: GRPOConfig) -> None:
        self._config = config

    def advantages(self, rewards_G: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return group_normalised(rewards_G, self._config.delta)

    def loss(self, inputs: "LossInputs") -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
        from rft_core.algorithms.losses import aggregate, clipped_surrogate, token_share  # noqa: PLC0415  torch only when it is used

        per_token, clipped = clipped_surrogate(inputs, self._config.clip_low, self._config.clip_high)
        loss = aggregate(per_token, inputs, self._config)
        return loss, {CLIP_FRAC: token_share(clipped, inputs)}
