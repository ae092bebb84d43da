"""What every algorithm gives."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from rft_core.registry import Registry

if TYPE_CHECKING:
    import torch

    from rft_core.algorithms.losses import LossInputs


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm can't do without; `rft plan` refuses a recipe that lacks it."""

    rollout: bool = True
    """False: it learns from expert rows, nothing is sampled."""
    rewards: bool = True
    min_group_size: int = 1


class Algorithm(Protocol):
    """Advantages of a group, and a loss over a batch."""

    needs: Needs

    def advantages(self, rewards_G: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Advantages of the attempts of one group.

        Args:
            rewards_G: Shape (G,), float64, NaN where an attempt has no reward.

        Returns:
            Shape (G,), float64, finite; 0 where there was no reward.
        """
        ...

    def loss(self, inputs: "LossInputs") -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
        """This micro-batch's share of the whole batch's loss, and sums of figures to report.

        Args:
            inputs: (B, T) tensors of one micro-batch, with the sizes of the whole batch.

        Returns:
            A scalar; the shares of all micro-batches add up to the loss of the batch, however it is split.
            The figures add up in the same way.
        """
        ...


algorithms: Registry[Algorithm] = Registry("algorithm", "rft_core.algorithms", heavy=("losses",))
"""Algorithms are built as `cls(config)`."""
