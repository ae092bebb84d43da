"""Supervised fine-tuning."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rft_core.algorithms.base import Needs, algorithms
from rft_core.registry import ExtensionConfig

if TYPE_CHECKING:
    import torch

    from rft_core.algorithms.losses import LossInputs


@algorithms.register("sft")
class SFT:
    """Supervised fine-tuning: make what the expert wrote more likely.

    L = -(1 / N) sum over tokens of log p, N the expert's tokens in the whole batch

    Assumes rows whose trained tokens are an expert's; what they score is not looked at.
    """

    needs = Needs(rollout=False, rewards=False)

    def __init__(self, config: ExtensionConfig) -> None:
        pass

    def advantages(self, rewards_G: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.where(np.isnan(rewards_G), 0.0, 1.0)

    def loss(self, inputs: "LossInputs") -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
        from rft_core.algorithms.losses import negative_log_likelihood, token_mean  # noqa: PLC0415  torch only when it is used

        return token_mean(negative_log_likelihood(inputs), inputs), {}
