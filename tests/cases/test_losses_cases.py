"""Public reports about the scale of losses and about log-probs. Each test cites its report."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from rft_core import metrics
from rft_core.algorithms import algorithms
from rft_core.algorithms.losses import LossInputs, constant_length, negative_log_likelihood, token_mean
from rft_core.config import TrainerConfig
from rft_core.errors import TrainingError
from rft_core.trainer.batch import Batch, TrainingRow
from rft_core.trainer.policy import Policy
from rft_core.trainer.trainer import Trainer


def _policy() -> Policy:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig(
        vocab_size=16, max_position_embeddings=64, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes
    )
    return Policy(AutoModelForCausalLM.from_config(config).eval())


def _row(length: int, advantage: float, temperature: float = 1.0) -> TrainingRow:
    tokens = tuple(3 + (index * 7 + length) % 13 for index in range(length + 1))
    return TrainingRow("", tokens, (False,) + (True,) * length, (0.0,) + (-2.5,) * length, advantage, temperature)


def _gradient(batch: Batch, micro_batch_tokens: int, algorithm: str = "grpo", **args: object) -> tuple[float, torch.Tensor]:
    config = TrainerConfig(micro_batch_tokens=micro_batch_tokens, clip_norm=1e9, packing="padded")
    trainer = Trainer(config, _policy(), algorithms.build(algorithm, args, "algorithm"), 1, 0)
    gradients: list[torch.Tensor] = []
    trainer.optimizer.register_step_pre_hook(lambda *_: gradients.append(torch.cat([m.grad.flatten() for m in trainer.masters])))
    return trainer.step(1, batch)[metrics.LOSS], gradients[0]


def test_b35_token_losses_weigh_the_same_however_they_are_split() -> None:
    """verl #7200, #7321: lengths 1 and 9 with token losses 1 and 0 are 0.1 in the mean, not 0.5, in one or two micro-batches."""
    per_token = torch.cat([torch.tensor([[1.0] + [0.0] * 8]), torch.zeros(1, 9)])
    mask = torch.tensor([[True] + [False] * 8, [True] * 9])
    inputs = LossInputs(-per_token, torch.zeros(2, 9), torch.ones(2, 9), mask, num_tokens=10, num_sequences=2)
    rows = [replace(inputs, logprobs=-per_token[b : b + 1], mask=mask[b : b + 1]) for b in (0, 1)]
    assert token_mean(negative_log_likelihood(inputs), inputs).item() == pytest.approx(0.1)
    assert sum(token_mean(negative_log_likelihood(row), row).item() for row in rows) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("algorithm", "args"),
    [("sft", {}), ("grpo", {}), ("grpo", {"aggregation": "token_mean"})],
)
def test_b35_gradient_does_not_depend_on_micro_batches(algorithm: str, args: dict[str, object]) -> None:
    """verl #7200, PR #5641, PR #906; prime-rl PR #583: lengths 1 and 9, split 1 + 1 and together."""
    batch = Batch(((_row(1, 1.0), _row(9, -0.5)),))
    whole_loss, whole = _gradient(batch, 4096, algorithm, **args)
    split_loss, split = _gradient(batch, 1, algorithm, **args)
    assert split_loss == pytest.approx(whole_loss, rel=1e-6, abs=1e-6)
    assert float((split - whole).norm() / whole.norm()) < 1e-6


def test_b36_constant_length_does_not_scale_with_micro_batches() -> None:
    """verl #3741: Dr. GRPO's loss grew with the number of micro-batches."""
    batch = Batch((tuple(_row(length, advantage) for length, advantage in ((1, 1.0), (9, -0.5), (4, 0.3), (2, -0.8))),))
    whole_loss, whole = _gradient(batch, 4096, aggregation="constant_length", length=9)
    split_loss, split = _gradient(batch, 1, aggregation="constant_length", length=9)
    assert split_loss == pytest.approx(whole_loss, rel=1e-6, abs=1e-6)
    assert float((split - whole).norm() / whole.norm()) < 1e-6


def test_b36_constant_length_does_not_use_the_padded_width() -> None:
    """verl #3741: the constant is the run's, whatever the micro-batch is padded to."""
    losses = []
    for width in (3, 50):
        inputs = LossInputs(torch.zeros(1, width), torch.zeros(1, width), torch.ones(1, width), torch.arange(width)[None] < 3, 3, 1)
        losses.append(constant_length(torch.ones(1, width), inputs, length=12).item())
    assert losses == [0.25, 0.25]


def test_b39_no_trained_token_is_an_error_and_not_nan() -> None:
    """trl PR #5826 (#5662): 0 / 0 tokens made the loss NaN."""
    inputs = LossInputs(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool), 0, 0)
    with pytest.raises(TrainingError, match="no trained token"):
        algorithms.build("sft", {}, "algorithm").loss(inputs)


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.0])
def test_b49_ratio_is_one_at_the_sampling_temperature(packing: str, temperature: float) -> None:
    """trl #4159: at temperature 0.6 and with the very weights that sampled, the ratio was 2.0."""
    policy = _policy()
    rows = []
    for length in (3, 6):
        row = _row(length, 1.0, temperature)
        ids = torch.tensor(row.tokens)
        with torch.no_grad():
            logprobs = (policy.module(input_ids=ids[None]).logits[0, :-1] / temperature).log_softmax(-1)
        old = logprobs.gather(1, ids[1:, None])[:, 0].tolist()
        rows.append(replace(row, old_logprobs=(0.0, *old), advantage=(-1.0) ** length))
    config = TrainerConfig.model_validate({"packing": packing})
    figures = Trainer(config, policy, algorithms.build("grpo", {"clip_low": 1e-4, "clip_high": 1e-4}, "algorithm"), 1, 0).step(
        1, Batch((tuple(rows),))
    )
    assert figures[metrics.LOGPROB_GAP_MAX] < 1e-5
    assert figures[metrics.CLIP_FRAC] == 0
    # With ratios of 1 the loss is minus the mean advantage.
    assert figures[metrics.LOSS] == pytest.approx(0.0, abs=1e-5)
