from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from rft_core import metrics
from rft_core.algorithms import algorithms
from rft_core.config import TrainerConfig
from rft_core.errors import NonFiniteError
from rft_core.operators import Group
from rft_core.trainer.batch import Batch, TrainingRow, make_batch
from rft_core.trainer.policy import Policy
from rft_core.trainer.trainer import Trainer, learning_rate_at

MakeTrainer = Callable[..., Trainer]
MakeBatch = Callable[..., Batch]


def _weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().float() for parameter in trainer.parameters])


def _gradient(trainer: Trainer, batch: Batch) -> tuple[dict[str, float], torch.Tensor]:
    """One step's figures, and the gradient that its update was made of."""
    gradients: list[torch.Tensor] = []
    trainer.optimizer.register_step_pre_hook(lambda *_: gradients.append(torch.cat([m.grad.flatten() for m in trainer.masters])))
    figures = trainer.step(1, batch)
    (gradient,) = gradients
    return figures, gradient


def _gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("args", [{}, {"aggregation": "token_mean"}, {"aggregation": "constant_length", "length": 8}])
def test_packing_and_micro_batches_have_no_influence(args: dict[str, object], trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    batch = random_batch(1)
    # Groups are about 15 nodes in a tree: all in one micro-batch, about two groups each, and a few sequences each.
    layouts = [("packed", 4096), ("packed", 32), ("packed", 9), ("padded", 4096), ("padded", 1)]
    results = [
        _gradient(trainer(args=args, packing=packing, micro_batch_tokens=tokens, clip_norm=1e9), batch) for packing, tokens in layouts
    ]
    figures, gradient = results[0]
    for other_figures, other in results[1:]:
        assert _gap(other, gradient) < 1e-5
        assert other_figures == pytest.approx(figures, rel=1e-4)


def test_loss_and_gradient_are_those_of_the_formula(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    batch = random_batch(2)
    this = trainer(clip_norm=1e9)
    total = torch.zeros(())
    for row in batch.rows:
        logits = this.policy.module(input_ids=torch.tensor([row.tokens])).logits[0]
        positions = torch.tensor(row.trained)
        logprobs = logits.log_softmax(-1)[positions - 1, torch.tensor(row.tokens)[positions]]
        ratios = (logprobs - torch.tensor(row.old_logprobs)[positions]).exp()
        surrogate = torch.minimum(ratios * row.advantage, ratios.clamp(0.8, 1.2) * row.advantage)
        total = total - surrogate.mean() / len(batch.rows)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total, this.parameters)])
    figures, gradient = _gradient(this, batch)
    assert figures[metrics.LOSS] == pytest.approx(total.item(), rel=1e-5)
    assert figures[metrics.GRAD_NORM] == pytest.approx(float(expected.norm()), rel=1e-5)
    assert _gap(gradient, expected) < 1e-5


def test_figures_of_a_step(trainer: MakeTrainer, random_batch: MakeBatch, row: Callable[..., TrainingRow]) -> None:
    this = trainer(updates_per_batch=2, mini_batch_groups=2, learning_rate=1e-2)
    batch = random_batch(3)
    figures = this.step(1, batch)
    assert figures[metrics.NUM_GROUPS] == 4
    assert figures[metrics.NUM_UPDATES] == 4
    assert figures[metrics.SKIPPED_UPDATES] == 0
    assert figures[metrics.NUM_TOKENS] == sum(len(r.trained) for r in batch.rows)
    assert figures[metrics.ADVANTAGE_STD] == pytest.approx(np.std([r.advantage for r in batch.rows]))
    assert figures[metrics.LEARNING_RATE] == 1e-2
    assert 0 < figures[metrics.CLIP_FRAC] < 1
    assert figures[metrics.LOGPROB_GAP_MAX] > figures[metrics.LOGPROB_GAP_MEAN] > 0
    assert all(name in {metric.name for metric in metrics.described()} for name in figures)


def test_log_prob_gap_is_taken_before_the_first_update(trainer: MakeTrainer, row: Callable[..., TrainingRow]) -> None:
    this = trainer(updates_per_batch=3, learning_rate=1e-1)
    rows = [row([3], [4, 5], 1.0), row([3], [6, 7], -1.0)]
    with torch.no_grad():
        exact = this.policy.logprobs(rows, "padded")
    offset = [-0.25, 0.5]
    group = tuple(replace(r, old_logprobs=(0.0, *(float(exact[b, t]) - offset[b] for t in r.trained))) for b, r in enumerate(rows))
    unknown = replace(group[0], old_logprobs=(0.0, float("nan"), float("nan")))
    figures = this.step(1, Batch(((*group, unknown),)))
    assert figures[metrics.LOGPROB_GAP_MEAN] == pytest.approx(0.375, abs=1e-4)
    assert figures[metrics.LOGPROB_GAP_MAX] == pytest.approx(0.5, abs=1e-4)


def test_supervised_rows_have_no_sampler_to_differ_from(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    figures = trainer("sft").step(1, random_batch(1))
    assert metrics.LOGPROB_GAP_MEAN not in figures and metrics.CLIP_FRAC not in figures
    assert figures[metrics.LOSS] > 0


def test_mini_batches_hold_whole_groups_in_a_seeded_order(
    trainer: MakeTrainer, random_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    this = trainer(updates_per_batch=2, mini_batch_groups=2)
    batch = random_batch(1, num_groups=5)
    passes = [[[batch.groups.index(group) for group in mini_batch] for mini_batch in this._mini_batches(step, batch)] for step in (1, 1, 2)]
    assert [len(mini_batch) for mini_batch in passes[0]] == [2, 2, 1, 2, 2, 1]
    assert all(sorted(chain(*half)) == list(range(5)) for half in (passes[0][:3], passes[0][3:]))
    assert passes[0] == passes[1] != passes[2]
    assert passes[0][:3] != passes[0][3:]


def test_the_gradient_is_clipped(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    free, clipped = trainer(clip_norm=1e9), trainer(clip_norm=1e-3)
    figures, whole = _gradient(free, random_batch(1))
    clipped_figures, cut = _gradient(clipped, random_batch(1))
    assert figures[metrics.GRAD_NORM] == clipped_figures[metrics.GRAD_NORM] == pytest.approx(float(whole.norm()), rel=1e-5)
    assert float(cut.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_an_empty_batch_moves_nothing(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    with_hole, without = (trainer(schedule="linear", total_steps=4) for _ in range(2))
    first = with_hole.step(1, random_batch(1))
    before = _weights(with_hole)
    empty = with_hole.step(2, Batch((), left_out={"g": "no attempt can be trained"}))
    assert torch.equal(_weights(with_hole), before)
    assert empty == {metrics.NUM_GROUPS: 0, metrics.NUM_TOKENS: 0, metrics.NUM_UPDATES: 0, metrics.SKIPPED_UPDATES: 0}
    second = with_hole.step(3, random_batch(2))
    assert (first[metrics.LEARNING_RATE], second[metrics.LEARNING_RATE]) == pytest.approx((1e-3, 0.75e-3))
    without.step(1, random_batch(1))
    without.step(2, random_batch(2))
    assert torch.equal(_weights(with_hole), _weights(without))


def test_updates_that_are_not_finite_are_skipped_and_then_fail(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    this = trainer(max_nonfinite_steps=2)
    good = random_batch(1)
    bad = Batch(((replace(good.rows[0], advantage=float("inf")), good.rows[1]),))
    this.step(1, good)
    before, moments = _weights(this), this.optimizer.state[this.masters[0]]["exp_avg"].clone()
    figures = this.step(2, bad)
    assert figures[metrics.SKIPPED_UPDATES] == 1 and figures[metrics.NUM_UPDATES] == 0
    assert metrics.LOSS not in figures and metrics.LEARNING_RATE not in figures
    assert torch.equal(_weights(this), before)
    assert torch.equal(this.optimizer.state[this.masters[0]]["exp_avg"], moments)
    assert this.step(3, good)[metrics.NUM_UPDATES] == 1  # and so the count starts again
    this.step(4, bad)
    with pytest.raises(NonFiniteError, match="step 5: .* 2 updates in a row"):
        this.step(5, bad)


def test_a_skipped_update_leaves_no_trace_in_the_next(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    this, other = trainer(), trainer()
    good = random_batch(1)
    this.step(1, Batch(((replace(good.rows[0], advantage=float("nan")),),)))
    this.step(2, good)
    other.step(1, good)
    assert torch.equal(_weights(this), _weights(other))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "linear"}, [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]),
        ({"schedule": "cosine"}, [0.5 * (1 + np.cos(np.pi * x)) for x in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]),
        ({"warmup_steps": 2}, [1 / 3, 2 / 3, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup_steps": 1, "schedule": "linear"}, [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ({"warmup_steps": 9, "schedule": "linear"}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
    ],
)
def test_schedules(settings: dict[str, object], expected: list[float]) -> None:
    config = TrainerConfig.model_validate({"learning_rate": 1.0, **settings})
    assert [learning_rate_at(config, steps, total_steps=5) for steps in range(6)] == pytest.approx(expected)


def test_bfloat16_keeps_small_updates_in_float32(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    this = trainer(dtype="bfloat16", learning_rate=1e-6)
    before, masters = _weights(this), torch.cat([m.flatten() for m in this.masters])
    for step in range(3):
        this.step(step, random_batch(step))
    now = torch.cat([m.flatten() for m in this.masters])
    assert {parameter.dtype for parameter in this.parameters} == {torch.bfloat16}
    # About three steps of 1e-6, which bfloat16 would have rounded away.
    assert 1e-6 < float((now - masters).abs().mean()) < 3.1e-6
    assert torch.equal(_weights(this), now.bfloat16().float())
    assert float((_weights(this) != before).float().mean()) < 0.1


def test_weight_decay_spares_norms(trainer: MakeTrainer, random_batch: MakeBatch) -> None:
    plain, decayed = trainer(), trainer(weight_decay=10.0)
    for this in (plain, decayed):
        this.step(1, random_batch(1))
    names = [name for name, _ in plain.policy.named_parameters()]
    equal = {name: torch.equal(a, b) for name, a, b in zip(names, plain.parameters, decayed.parameters, strict=True)}
    assert all(equal[name] == ("norm" in name) for name in names)


def test_a_tiny_policy_learns(tiny_folder: Path, group: Callable[..., Group]) -> None:
    """GRPO from real samples: answer with the token that the prompt ends in."""
    policy = Policy.load(tiny_folder)
    algorithm = algorithms.build("grpo", {}, "algorithm")
    config = TrainerConfig(learning_rate=2e-3, mini_batch_groups=4, updates_per_batch=2)
    trainer = Trainer(config, policy, algorithm, total_steps=60, seed=0)
    generator = torch.Generator().manual_seed(0)
    prompts = [(3, 4 + index) for index in range(8)]
    means = []
    for step in range(60):
        with torch.no_grad():
            logprobs = (policy.module(input_ids=torch.tensor(prompts)).logits[:, -1] / 2.0).log_softmax(-1)
        samples = torch.multinomial(logprobs.exp(), 32, replacement=True, generator=generator).tolist()
        groups = [
            group(
                [float(token == prompt[-1]) for token in line],
                [[token] for token in line],
                prompt=prompt,
                logprobs=[[float(logprobs[index, token])] for token in line],
                temperature=2.0,
            )
            for index, (prompt, line) in enumerate(zip(prompts, samples, strict=True))
        ]
        means.append(np.mean([attempt.reward for g in groups for attempt in g.attempts]))
        trainer.step(step, make_batch(groups, algorithm))
    assert np.mean(means[:5]) < 0.3
    assert np.mean(means[-5:]) > 0.9
