import numpy as np
import pytest
import torch

from rft_core.engines.hf_torch.row import uniforms
from rft_core.engines.hf_torch.sampling import BLOCK, sample
from rft_core.errors import EngineError

LARGEST = 1 - 2.0**-53
"""The largest number below 1 that a uniform can be."""


def logits(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("size", [7, BLOCK, 300, 5 * BLOCK])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.0])
def test_evenly_spread_uniforms_give_each_token_its_share(size: int, temperature: float) -> None:
    """With uniforms (i + 0.5) / N, an exact inverse CDF gives a token of probability p between pN - 1 and pN + 1 times."""
    count, row = 20_000, logits(size)
    tokens, _ = sample(row.repeat(count, 1), [temperature] * count, [(i + 0.5) / count for i in range(count)])
    expected = torch.softmax(row.double() / temperature, 0) * count
    assert (torch.bincount(torch.tensor(tokens), minlength=size) - expected).abs().max() <= 1.05


def test_logprobs_are_those_of_the_tempered_softmax() -> None:
    rows = logits(6, 1000)
    temperatures = [1.0, 0.6, 0.1, 3.0, 1.0, 0.0]
    tokens, logprobs = sample(rows.clone(), temperatures, [0.1, 0.5, 0.9, 0.3, 0.7, 0.2])
    for row, temperature, token, logprob in zip(rows.double(), temperatures, tokens, logprobs, strict=True):
        assert logprob == pytest.approx(torch.log_softmax(row / (temperature or 1), 0)[token].item(), abs=1e-6)


def test_temperature_zero_takes_the_likeliest_token_whatever_the_uniform() -> None:
    rows = logits(4, 500)
    tokens, _ = sample(rows.clone(), [0.0] * 4, [0.0, 0.4, 0.8, LARGEST])
    assert tokens == rows.argmax(1).tolist()


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, LARGEST])
def test_tokens_of_no_weight_are_never_sampled(uniform: float) -> None:
    """At both ends, across whole blocks, and in the padding of the last block."""
    rows = torch.full((2, 3 * BLOCK + 5), -torch.inf)
    rows[0, BLOCK + 3] = rows[0, BLOCK + 7] = 0.0
    rows[1, 0] = 0.0
    tokens, logprobs = sample(rows, [1.0, 1.0], [uniform, uniform])
    assert tokens == [BLOCK + (3 if uniform < 0.5 else 7), 0]
    assert logprobs == pytest.approx([-np.log(2), 0.0])


def test_the_last_uniform_takes_the_last_token_of_a_large_vocabulary() -> None:
    """Where sums in single precision end below the target, the sample would be lost or doubled at the end."""
    size = 49_152
    tokens, logprobs = sample(torch.zeros(3, size), [1.0] * 3, [0.0, 0.5, LARGEST])
    assert tokens == [0, size // 2, size - 1]
    assert logprobs == pytest.approx([-np.log(size)] * 3, abs=1e-7)


def test_a_blocks_rounded_sum_may_lie_above_its_tokens() -> None:
    """About every second block's sum in single precision does; the last uniform must still give a token, and the last one."""
    size = BLOCK - 3
    tokens, _ = sample(logits(50, size), [1.0] * 50, [LARGEST] * 50)
    assert tokens == [size - 1] * 50


def test_sums_are_double_where_single_precision_would_lose_the_tail() -> None:
    """One token holds almost everything, 50,000 hold 6e-4 together: their share must come out exactly."""
    row = torch.full((50_001,), -18.2)
    row[0] = 0.0
    count = 20_000
    tokens, _ = sample(row.repeat(64, 1), [1.0] * 64, [1 - (i + 0.5) / count for i in range(64)])
    share = float(1 - torch.softmax(row.double(), 0)[0])
    assert sum(token > 0 for token in tokens) == round(share * count)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_an_error(value: float) -> None:
    rows = logits(2, 50)
    rows[1, 3] = value
    with pytest.raises(EngineError, match="not finite"):
        sample(rows, [1.0, 1.0], [0.5, 0.5])


def test_uniforms_depend_on_the_seed_alone() -> None:
    assert np.array_equal(uniforms(5, 10), uniforms(5, 10))
    assert np.array_equal(uniforms(5, 10)[:4], uniforms(5, 4))
    assert not np.array_equal(uniforms(5, 10), uniforms(6, 10))
    many = uniforms(2**63 - 1, 100_000)
    assert many.min() >= 0
    assert many.max() < 1
    assert np.histogram(many, bins=10, range=(0, 1))[0] == pytest.approx(10_000, rel=0.05)
