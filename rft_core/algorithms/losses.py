"""Losses: pure functions of (B, T) tensors.

A loss has two parts. A per-token loss says what each trained token costs; an aggregation makes one number of it.
Each aggregation divides by a size of the whole batch, never of the micro-batch at hand, so the shares of all
micro-batches add up to the loss of the batch however it is split, packed or padded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rft_core.algorithms.aggregation import AggregationConfig
from rft_core.errors import TrainingError

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this before `exp`, so that one strange token can't make the loss infinite."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch, and the sizes of the batch over which the loss is defined.

    All tensors have shape (B, T) for B sequences of at most T tokens.
    """

    logprobs: Tensor
    """Natural log-prob of each trained token under the policy, at the sampling temperature; carries the gradient."""
    old_logprobs: Tensor
    """The same under the distribution that sampled it; NaN where it is not known."""
    advantages: Tensor
    """Advantage of the attempt that each token belongs to."""
    mask: Tensor
    """Boolean, true where the token is trained. What the other tensors hold elsewhere has no influence."""
    num_tokens: float
    """Trained tokens of the whole batch."""
    num_sequences: float
    """Sequences with a trained token in the whole batch."""


def log_ratios(inputs: LossInputs) -> Tensor:
    """log(policy / sampler) of each trained token, (B, T), within +-`MAX_LOG_RATIO`; 0 elsewhere.

    Where the sampler's log-prob is NaN the token counts as sampled by the policy itself: the ratio is 1 and still has
    its gradient (as in TRL). Where both are -inf the ratio is 1, without a gradient (as in AReaL).
    """
    logprobs = torch.where(inputs.mask, inputs.logprobs, 0.0)
    old_logprobs = torch.where(inputs.old_logprobs.isnan(), logprobs.detach(), inputs.old_logprobs)
    # The branch that `where` leaves out still has a gradient, and that of -inf - -inf is NaN: it must not see the -inf.
    impossible = (logprobs == -torch.inf) & (old_logprobs == -torch.inf) | ~inputs.mask
    difference = torch.where(impossible, 0.0, logprobs) - torch.where(impossible, 0.0, old_logprobs)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(inputs: LossInputs, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The per-token loss -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), Schulman et al. 2017 (PPO), equation 7.

    Args:
        inputs: One micro-batch.
        clip_low: How far below 1 the ratio r may fall before it stops to count.
        clip_high: How far above 1 it may rise.

    Returns:
        The loss, (B, T), and where clipping took the gradient away, (B, T) boolean; 0 and false outside the mask.
    """
    ratios = log_ratios(inputs).exp()
    advantages = torch.where(inputs.mask, inputs.advantages, 0.0)
    unclipped = ratios * advantages
    clipped = ratios.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.minimum(unclipped, clipped), clipped < unclipped


def negative_log_likelihood(inputs: LossInputs) -> Tensor:
    """The per-token loss -log p, (B, T); 0 outside the mask."""
    return -torch.where(inputs.mask, inputs.logprobs, 0.0)


def token_mean(per_token: Tensor, inputs: LossInputs) -> Tensor:
    """This micro-batch's share of the mean over all trained tokens of the batch: every token weighs the same.

    Args:
        per_token: Shape (B, T).
        inputs: The micro-batch that it was made of.

    Raises:
        TrainingError: The batch has no trained token.
    """
    return _masked(per_token, inputs).sum() / _positive(inputs.num_tokens)


def sequence_mean(per_token: Tensor, inputs: LossInputs) -> Tensor:
    """This micro-batch's share of the mean over sequences of each one's mean over its tokens: every sequence weighs the same.

    Args:
        per_token: Shape (B, T).
        inputs: The micro-batch that it was made of.

    Raises:
        TrainingError: The batch has no trained token.
    """
    # A sequence without a trained token has the sum 0 and is no part of `num_sequences`.
    lengths_B = inputs.mask.sum(dim=1).clamp(min=1)
    return (_masked(per_token, inputs).sum(dim=1) / lengths_B).sum() / _positive(inputs.num_sequences)


def constant_length(per_token: Tensor, inputs: LossInputs, length: int) -> Tensor:
    """This micro-batch's share of sum / (sequences x length), Liu et al. 2025 (Dr. GRPO): no bias by a sequence's length.

    Args:
        per_token: Shape (B, T).
        inputs: The micro-batch that it was made of.
        length: A constant of the run, in tokens, such as the longest answer; never the width of the micro-batch.

    Raises:
        TrainingError: The batch has no trained token.
    """
    return _masked(per_token, inputs).sum() / (_positive(inputs.num_sequences) * length)


def aggregate(per_token: Tensor, inputs: LossInputs, config: AggregationConfig) -> Tensor:
    """This micro-batch's share of the batch's loss, by the aggregation that the configuration names.

    Args:
        per_token: Shape (B, T).
        inputs: The micro-batch that it was made of.
        config: The algorithm's own configuration.

    Raises:
        TrainingError: The batch has no trained token.
    """
    if config.length is not None:
        return constant_length(per_token, inputs, config.length)
    return token_mean(per_token, inputs) if config.aggregation == "token_mean" else sequence_mean(per_token, inputs)


def token_share(flags: Tensor, inputs: LossInputs) -> Tensor:
    """This micro-batch's share of the fraction of the batch's trained tokens for which a boolean (B, T) is true."""
    return (flags & inputs.mask).sum(dtype=torch.float64) / _positive(inputs.num_tokens)


def _masked(per_token: Tensor, inputs: LossInputs) -> Tensor:
    return torch.where(inputs.mask, per_token, 0.0)


def _positive(size: float) -> float:
    if size <= 0:
        raise TrainingError("a loss over no trained token", "leave sequences without one out of the batch")
    return size
