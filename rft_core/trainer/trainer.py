"""One step: a batch of groups in, an updated policy and its figures out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rft_core import metrics
from rft_core.algorithms import Algorithm
from rft_core.algorithms.losses import LossInputs
from rft_core.config import TrainerConfig
from rft_core.errors import NonFiniteError
from rft_core.trainer.batch import Batch, TrainingRow, plan_micro_batches
from rft_core.trainer.policy import Policy
from rft_core.types import seed_of


@dataclass(slots=True)
class Counters:
    """What a trainer has to remember beside weights and optimizer state."""

    steps_trained: int = 0
    """Steps in which the policy was updated: the learning rate depends on it, so an empty step does not move the schedule."""
    updates: int = 0
    """Optimizer updates made."""
    nonfinite_in_a_row: int = 0
    """Updates skipped since the last one that was made."""


@dataclass(slots=True)
class _Figures:
    """What is gathered over the updates of one step."""

    losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    shares: dict[str, list[float]] = field(default_factory=dict)
    """What the algorithm reports, by metric, for each update."""
    gaps: list[Tensor] = field(default_factory=list)
    """|trainer - sampler| of the log-probs, (tokens,), at the weights that the step starts from."""
    skipped: int = 0


class Trainer:
    """Updates a policy by AdamW.

    Args:
        config: How.
        policy: Updated in place. In bfloat16 the optimizer keeps float32 copies of the weights, to which it adds and
            which it rounds after each update: an update smaller than a step of bfloat16 is not lost.
        algorithm: Gives the loss.
        total_steps: The run's `steps`, at which the schedule ends.
        seed: The run's; mini-batches are drawn by (seed, step, pass), so a step that is redone draws the same ones.

    Raises:
        ModelError: This model can't be trained in this layout.
    """

    def __init__(self, config: TrainerConfig, policy: Policy, algorithm: Algorithm, total_steps: int, seed: int) -> None:
        self.config = config
        self.policy = policy
        self.algorithm = algorithm
        self.counters = Counters()
        self._total_steps = total_steps
        self._seed = seed
        policy.check(config.packing)
        self.parameters: list[torch.nn.Parameter] = [parameter for _, parameter in policy.named_parameters()]
        self.masters = [_master(parameter) for parameter in self.parameters]
        """What the optimizer updates: the parameters themselves in float32, float32 copies of them otherwise."""
        self.optimizer = self._make_optimizer()

    def step(self, step: int, batch: Batch) -> dict[str, float]:
        """Train on one batch.

        An empty batch changes nothing: neither optimizer nor schedule move.

        Args:
            step: The step's number.
            batch: Its groups.

        Returns:
            Figures by the names in `rft_core.metrics`; those that could not be measured are left out.

        Raises:
            NonFiniteError: Loss or gradient was not finite `max_nonfinite_steps` times in a row. The policy is as it was
                after the last good update.
        """
        figures = _Figures()
        learning_rate = learning_rate_at(self.config, self.counters.steps_trained, self._total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        updates_before = self.counters.updates
        for mini_batch in self._mini_batches(step, batch):
            self._update(step, mini_batch, figures)
        num_updates = self.counters.updates - updates_before
        self.counters.steps_trained += num_updates > 0
        return _summary(batch, figures, num_updates, learning_rate)

    def _mini_batches(self, step: int, batch: Batch) -> Iterator[list[Sequence[TrainingRow]]]:
        """Whole groups, `mini_batch_groups` at a time, in another order in each pass over the batch."""
        num_groups = len(batch.groups)
        size = min(self.config.mini_batch_groups or num_groups, num_groups)
        for number in range(self.config.updates_per_batch if num_groups else 0):
            order = np.arange(num_groups)
            if size < num_groups:  # otherwise the order has no meaning
                order = np.random.default_rng(seed_of(self._seed, "mini-batches", step, number)).permutation(num_groups)
            for start in range(0, num_groups, size):
                yield [batch.groups[index] for index in order[start : start + size]]

    def _update(self, step: int, groups: Sequence[Sequence[TrainingRow]], figures: _Figures) -> None:
        """One optimizer update over the loss of some groups, or none if it is not finite."""
        loss, shares = self._accumulate(groups, figures)
        gradients = [master.grad for master in self.masters if master.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not (np.isfinite(loss) and torch.isfinite(norm)):
            self._skip(step, figures)
            return
        torch.nn.utils.clip_grads_with_norm_(self.masters, self.config.clip_norm, norm)
        self.optimizer.step()
        self._clear_gradients()
        self._round_masters()
        self.counters.updates += 1
        self.counters.nonfinite_in_a_row = 0
        figures.losses.append(loss)
        figures.grad_norms.append(float(norm))
        for name, value in shares.items():
            figures.shares.setdefault(name, []).append(value)

    def _accumulate(self, groups: Sequence[Sequence[TrainingRow]], figures: _Figures) -> tuple[float, dict[str, float]]:
        """Leave the gradient of the groups' loss in the masters; returns the loss, and what the algorithm reports."""
        rows = [row for group in groups for row in group]
        num_tokens = float(sum(len(row.trained) for row in rows))
        at_start = not figures.losses and not figures.skipped
        total = 0.0
        sums: dict[str, float] = {}
        for micro_batch in plan_micro_batches(groups, self.config.micro_batch_tokens, self.config.packing):
            inputs = self._loss_inputs(micro_batch, num_tokens, float(len(rows)))
            loss, shares = self.algorithm.loss(inputs)
            loss.backward()
            self._gather_gradients()
            total += float(loss.detach())
            for name, share in shares.items():
                sums[name] = sums.get(name, 0.0) + float(share.detach())
            if at_start and self.algorithm.needs.rollout:
                figures.gaps.append((inputs.logprobs - inputs.old_logprobs).detach()[inputs.mask].abs().cpu())
        return total, sums

    def _loss_inputs(self, rows: Sequence[TrainingRow], num_tokens: float, num_sequences: float) -> LossInputs:
        logprobs = self.policy.logprobs(rows, self.config.packing)
        old_BT = np.zeros(logprobs.shape, dtype=np.float32)
        mask_BT = np.zeros(logprobs.shape, dtype=np.bool_)
        for index, row in enumerate(rows):
            old_BT[index, : len(row.tokens)] = row.old_logprobs
            mask_BT[index, list(row.trained)] = True
        advantages_B = torch.tensor([row.advantage for row in rows], dtype=torch.float32, device=logprobs.device)
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=torch.from_numpy(old_BT).to(logprobs.device),
            advantages=advantages_B[:, None].expand(logprobs.shape),
            mask=torch.from_numpy(mask_BT).to(logprobs.device),
            num_tokens=num_tokens,
            num_sequences=num_sequences,
        )

    def _make_optimizer(self) -> torch.optim.AdamW:
        """AdamW; norms and biases, which have one axis, don't decay."""
        decayed = [master for master in self.masters if master.ndim > 1]
        others = [master for master in self.masters if master.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.0, betas=self.config.betas, fused=True)

    def _gather_gradients(self) -> None:
        """Add up micro-batches in float32, so that how many there are does not matter."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is parameter or parameter.grad is None:
                continue
            gradient = parameter.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def _round_masters(self) -> None:
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if master is not parameter:
                    parameter.copy_(master)

    def _clear_gradients(self) -> None:
        for tensor in (*self.masters, *self.parameters):
            tensor.grad = None

    def _skip(self, step: int, figures: _Figures) -> None:
        self._clear_gradients()
        figures.skipped += 1
        self.counters.nonfinite_in_a_row += 1
        if self.counters.nonfinite_in_a_row >= self.config.max_nonfinite_steps:
            found = f"step {step}: loss or gradient was not finite in {self.counters.nonfinite_in_a_row} updates in a row"
            raise NonFiniteError(found, "lower trainer.learning_rate, or look at the step's rewards and log-probs")


def learning_rate_at(config: TrainerConfig, steps_trained: int, total_steps: int) -> float:
    """The learning rate of a step.

    Over `warmup_steps` it rises in equal parts and is full at the step after them; it never is 0 there, so no step is lost.
    From then on it is constant, or falls along a line or a half cosine that gets to 0 at `total_steps`.

    Args:
        config: Peak, schedule, warm-up.
        steps_trained: Steps in which the policy was updated before this one.
        total_steps: The run's `steps`.
    """
    if steps_trained < config.warmup_steps:
        return config.learning_rate * (steps_trained + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return config.learning_rate
    progress = (steps_trained - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    progress = min(1.0, progress)
    return config.learning_rate * (1 - progress if config.schedule == "linear" else float(0.5 * (1 + np.cos(np.pi * progress))))


def _master(parameter: torch.nn.Parameter) -> Tensor:
    return parameter if parameter.dtype == torch.float32 else parameter.detach().float().clone()


def _summary(batch: Batch, figures: _Figures, num_updates: int, learning_rate: float) -> dict[str, float]:
    rows = batch.rows
    summary = {
        metrics.NUM_GROUPS: float(len(batch.groups)),
        metrics.NUM_TOKENS: float(sum(len(row.trained) for row in rows)),
        metrics.NUM_UPDATES: float(num_updates),
        metrics.SKIPPED_UPDATES: float(figures.skipped),
    }
    advantages = [row.advantage for row in rows if np.isfinite(row.advantage)]
    if advantages:
        summary[metrics.ADVANTAGE_STD] = metrics.std(advantages)
    if num_updates:
        summary[metrics.LOSS] = metrics.mean(figures.losses)
        summary[metrics.GRAD_NORM] = metrics.mean(figures.grad_norms)
        summary[metrics.LEARNING_RATE] = learning_rate
        summary |= {name: metrics.mean(values) for name, values in figures.shares.items()}
    gaps = torch.cat(figures.gaps) if figures.gaps else torch.zeros(0)
    gaps = gaps[gaps.isfinite()]
    if len(gaps):
        summary[metrics.LOGPROB_GAP_MEAN] = float(gaps.mean())
        summary[metrics.LOGPROB_GAP_MAX] = float(gaps.max())
    return summary
