"""Sampling a token for each row by inverse CDF.

The serial random generator is what costs in `torch.multinomial` and in Gumbel sampling: 37 ms for 32 rows of 49,152
logits. One uniform a row and a cumulative sum takes 2 ms, and the same pass gives the log-sum-exp.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rft_core.errors import EngineError

BLOCK = 128
"""Logits are summed in blocks of so many; only the block that holds the sample is summed token by token."""


def sample(logits_NV: Tensor, temperatures_N: Sequence[float], uniforms_N: Sequence[float]) -> tuple[list[int], list[float]]:
    """Sample one token a row.

    Args:
        logits_NV: Shape (N, V), float32 or float64; overwritten, since a copy of so many numbers costs as much as the rest.
        temperatures_N: 0 takes the likeliest token, and its log-prob is then that at temperature 1.
        uniforms_N: In [0, 1); not used by greedy rows.

    Returns:
        Token ids, and their natural log-probs under softmax(logits / temperature).

    Raises:
        EngineError: Logits are not finite.
    """
    if any(temperature not in (0, 1) for temperature in temperatures_N):
        scales_N = logits_NV.new_tensor([temperature or 1.0 for temperature in temperatures_N])
        logits_NV.div_(scales_N[:, None])
    shifted_NV = logits_NV.sub_(logits_NV.amax(dim=1, keepdim=True))
    blocks_NKB = _blocks(shifted_NV.exp())
    # A block's sum is short enough for the logits' own precision; across blocks, double keeps the tail's share right.
    ends_NK = blocks_NKB.sum(dim=-1).double().cumsum(dim=-1)
    totals_N = ends_NK[:, -1]
    if not bool(torch.isfinite(totals_N).all()):
        raise EngineError("the model's logits are not finite", "the weights are damaged, or `model.dtype` is too small for them")
    tokens_N = _invert(blocks_NKB, ends_NK, totals_N.new_tensor(uniforms_N) * totals_N)
    greedy_N = [temperature == 0 for temperature in temperatures_N]
    if any(greedy_N):
        tokens_N = torch.where(torch.tensor(greedy_N, device=tokens_N.device), shifted_NV.argmax(dim=1), tokens_N)
    chosen_N = shifted_NV.gather(1, tokens_N[:, None])[:, 0]
    return tokens_N.tolist(), (chosen_N.double() - totals_N.log()).tolist()


def _blocks(weights_NV: Tensor) -> Tensor:
    padding = -weights_NV.shape[1] % BLOCK
    return torch.nn.functional.pad(weights_NV, (0, padding)).unflatten(1, (-1, BLOCK))


def _invert(blocks_NKB: Tensor, ends_NK: Tensor, targets_N: Tensor) -> Tensor:
    """The first token at which the cumulative sum passes the target; never one of weight 0."""
    block_N = _first_above(ends_NK, targets_N)
    rows_N = torch.arange(len(block_N), device=block_N.device)
    inside_NB = blocks_NKB[rows_N, block_N].double().cumsum(dim=-1)
    before_N = torch.where(block_N > 0, ends_NK[rows_N, (block_N - 1).clamp(min=0)], 0.0)
    return block_N * BLOCK + _first_above(inside_NB, targets_N - before_N)


def _first_above(sums_NK: Tensor, targets_N: Tensor) -> Tensor:
    """Index of the first sum above the target.

    Rounding can bring a target up to the last sum, and what comes after may have weight 0; then it is the first index
    that reaches the last sum.
    """
    below_last_N = torch.nextafter(sums_NK[:, -1], torch.zeros_like(targets_N))
    return torch.searchsorted(sums_NK, torch.minimum(targets_N, below_last_N)[:, None], right=True)[:, 0]
