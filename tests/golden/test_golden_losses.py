"""Known answers of the losses and their gradients, in float64, worked out by hand."""

import torch

from rft_core.algorithms.losses import LossInputs, clipped_surrogate, constant_length, negative_log_likelihood, sequence_mean, token_mean


def _inputs() -> LossInputs:
    """Two sequences, with ratios 1.5 and 0.5 at advantage 1, and 1.5, 0.5, 1 at advantage -1."""
    ratios = torch.tensor([[1.5, 0.5, 9.0], [1.5, 0.5, 1.0]], dtype=torch.float64)
    old_logprobs = torch.tensor([[-1.0, -2.0, 0.0], [-0.5, -3.0, -1.0]], dtype=torch.float64)
    return LossInputs(
        logprobs=(old_logprobs + ratios.log()).requires_grad_(),
        old_logprobs=old_logprobs,
        advantages=torch.tensor([[1.0], [-1.0]], dtype=torch.float64).expand(2, 3),
        mask=torch.tensor([[True, True, False], [True, True, True]]),
        num_tokens=5,
        num_sequences=2,
    )


PER_TOKEN = torch.tensor([[-1.2, -0.5, 0.0], [1.5, 0.8, 1.0]], dtype=torch.float64)
"""-min(r A, clip(r, 0.8, 1.2) A)."""
SLOPE = torch.tensor([[0.0, -0.5, 0.0], [1.5, 0.0, 1.0]], dtype=torch.float64)
"""Its derivative by the log-prob: -r A where the ratio is not clipped."""


def test_clipped_surrogate() -> None:
    per_token, clipped = clipped_surrogate(_inputs(), 0.2, 0.2)
    torch.testing.assert_close(per_token, PER_TOKEN, rtol=1e-14, atol=0)
    assert clipped.tolist() == [[True, False, False], [False, True, False]]


def test_clip_high_and_low_are_apart() -> None:
    per_token, clipped = clipped_surrogate(_inputs(), 0.6, 0.28)
    torch.testing.assert_close(per_token, torch.tensor([[-1.28, -0.5, 0.0], [1.5, 0.5, 1.0]], dtype=torch.float64), rtol=1e-14, atol=0)
    assert clipped.tolist() == [[True, False, False], [False, False, False]]


def test_sequence_mean() -> None:
    inputs = _inputs()
    loss = sequence_mean(clipped_surrogate(inputs, 0.2, 0.2)[0], inputs)
    loss.backward()
    # ((-1.2 - 0.5) / 2 + (1.5 + 0.8 + 1.0) / 3) / 2
    torch.testing.assert_close(loss.item(), 0.125, rtol=1e-14, atol=0)
    torch.testing.assert_close(inputs.logprobs.grad, SLOPE / torch.tensor([[4.0], [6.0]]), rtol=1e-14, atol=0)


def test_token_mean() -> None:
    inputs = _inputs()
    loss = token_mean(clipped_surrogate(inputs, 0.2, 0.2)[0], inputs)
    loss.backward()
    torch.testing.assert_close(loss.item(), 1.6 / 5, rtol=1e-14, atol=0)
    torch.testing.assert_close(inputs.logprobs.grad, SLOPE / 5, rtol=1e-14, atol=0)


def test_constant_length() -> None:
    inputs = _inputs()
    loss = constant_length(clipped_surrogate(inputs, 0.2, 0.2)[0], inputs, length=4)
    loss.backward()
    torch.testing.assert_close(loss.item(), 1.6 / 8, rtol=1e-14, atol=0)
    torch.testing.assert_close(inputs.logprobs.grad, SLOPE / 8, rtol=1e-14, atol=0)


def test_negative_log_likelihood() -> None:
    inputs = _inputs()
    loss = token_mean(negative_log_likelihood(inputs), inputs)
    loss.backward()
    # The old log-probs of the five trained tokens sum to -7.5, and their ratios multiply to 0.5625.
    torch.testing.assert_close(loss, (7.5 - torch.tensor(0.5625, dtype=torch.float64).log()) / 5, rtol=1e-14, atol=0)
    torch.testing.assert_close(inputs.logprobs.grad, -inputs.mask.double() / 5, rtol=1e-14, atol=0)
