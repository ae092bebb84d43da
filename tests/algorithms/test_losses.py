from dataclasses import replace

import numpy as np
import pytest
import torch

from rft_core.algorithms import Algorithm, algorithms
from rft_core.algorithms.losses import LossInputs, clipped_surrogate, sequence_mean, token_mean
from rft_core.errors import TrainingError
from rft_core.metrics import CLIP_FRAC

INF, NAN = float("inf"), float("nan")


def _random_inputs(num_rows: int = 8, width: int = 9) -> LossInputs:
    generator = torch.Generator().manual_seed(3)
    logprobs = -torch.rand(num_rows, width, generator=generator, dtype=torch.float64) * 3
    lengths = torch.tensor([1, 9, 4, 2, 7, 9, 1, 5])[:num_rows]
    mask = torch.arange(width) < lengths[:, None]
    return LossInputs(
        logprobs=logprobs.requires_grad_(),
        old_logprobs=logprobs.detach() + torch.randn(num_rows, width, generator=generator, dtype=torch.float64) * 0.3,
        advantages=torch.randn(num_rows, 1, generator=generator, dtype=torch.float64).expand(num_rows, width),
        mask=mask,
        num_tokens=float(mask.sum()),
        num_sequences=float(num_rows),
    )


def _rows(inputs: LossInputs, rows: slice) -> LossInputs:
    return replace(
        inputs,
        logprobs=inputs.logprobs[rows],
        old_logprobs=inputs.old_logprobs[rows],
        advantages=inputs.advantages[rows],
        mask=inputs.mask[rows],
    )


def _gradient(algorithm: Algorithm, inputs: LossInputs, size: int) -> tuple[float, float, torch.Tensor]:
    inputs.logprobs.grad = None
    total, clip_frac = 0.0, 0.0
    for start in range(0, len(inputs.mask), size):
        loss, figures = algorithm.loss(_rows(inputs, slice(start, start + size)))
        loss.backward()
        total += loss.item()
        clip_frac += float(figures.get(CLIP_FRAC, 0.0))
    assert inputs.logprobs.grad is not None
    return total, clip_frac, inputs.logprobs.grad.clone()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("grpo", {}),
        ("grpo", {"aggregation": "token_mean"}),
        ("grpo", {"aggregation": "constant_length", "length": 12}),
        ("sft", {}),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_shares_of_micro_batches_add_up(name: str, args: dict[str, object], size: int) -> None:
    algorithm = algorithms.build(name, args, "algorithm")
    inputs = _random_inputs()
    whole = _gradient(algorithm, inputs, 8)
    split = _gradient(algorithm, inputs, size)
    assert split[0] == pytest.approx(whole[0], rel=1e-12)
    assert split[1] == pytest.approx(whole[1], rel=1e-12)
    torch.testing.assert_close(split[2], whole[2], rtol=1e-12, atol=1e-15)
    if name == "grpo":
        assert 0 < whole[1] < 1


def test_padding_has_no_influence() -> None:
    inputs = _random_inputs()
    junk = torch.full((8, 3), NAN, dtype=torch.float64)
    wider = replace(
        inputs,
        logprobs=torch.cat([inputs.logprobs, junk], dim=1),
        old_logprobs=torch.cat([inputs.old_logprobs, -junk], dim=1),
        advantages=inputs.advantages[:, :1].expand(8, 12),
        mask=torch.cat([inputs.mask, torch.zeros(8, 3, dtype=torch.bool)], dim=1),
    )
    algorithm = algorithms.build("grpo", {}, "algorithm")
    expected, _ = algorithm.loss(inputs)
    loss, _ = algorithm.loss(wider)
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    loss.backward()
    assert inputs.logprobs.grad is not None and inputs.logprobs.grad.isfinite().all()
    assert (inputs.logprobs.grad[~inputs.mask] == 0).all()


@pytest.mark.parametrize(
    ("logprob", "old", "ratio", "slope"),
    [
        (-1.0, NAN, 1.0, -1.0),  # not known: as if sampled by the policy itself
        (-INF, -INF, 1.0, 0.0),
        (-INF, -1.0, np.exp(-20.0), 0.0),
        (-50.0, -1.0, np.exp(-20.0), 0.0),
        (-1.0, -1.0, 1.0, -1.0),
    ],
)
def test_log_probs_at_the_edge(logprob: float, old: float, ratio: float, slope: float) -> None:
    logprobs = torch.tensor([[logprob]], dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(logprobs, torch.tensor([[old]], dtype=torch.float64), torch.ones(1, 1), torch.tensor([[True]]), 1, 1)
    per_token, _ = clipped_surrogate(inputs, 0.2, 0.2)
    per_token.sum().backward()  # type: ignore[no-untyped-call]
    assert per_token.item() == pytest.approx(-ratio)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(slope)


def test_impossible_old_logprob_stays_finite() -> None:
    inputs = LossInputs(torch.zeros(1, 1), torch.tensor([[-INF]]), torch.tensor([[-1.0]]), torch.tensor([[True]]), 1, 1)
    per_token, _ = clipped_surrogate(inputs, 0.2, 0.2)
    assert per_token.isfinite().all()


@pytest.mark.parametrize("aggregation", [token_mean, sequence_mean])
def test_no_trained_token_is_an_error(aggregation: object) -> None:
    inputs = LossInputs(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([[False]]), 0, 0)
    with pytest.raises(TrainingError, match="no trained token"):
        aggregation(torch.zeros(1, 1), inputs)  # type: ignore[operator]
