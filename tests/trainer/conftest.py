"""Tiny real models and the rows to train them on."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rft_core.algorithms import algorithms
from rft_core.config import TrainerConfig
from rft_core.operators import Attempt, Group
from rft_core.trainer.batch import Batch, TrainingRow
from rft_core.trainer.policy import Policy
from rft_core.trainer.trainer import Trainer
from rft_core.types import Experience, StopReason

VOCAB = 24
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Larger than usual, so that a wrong mask or position shows in the log-probs.
    "initializer_range": 0.3,
}


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Hugging Face folder of a random Llama of 20,000 parameters."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, tie_word_embeddings=True))
    policy = Policy(model.eval())
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    policy.save(folder, folder / "nowhere")
    return folder


@pytest.fixture
def row() -> Callable[..., TrainingRow]:
    """Make a row of prompt and completion; log-probs default to those of a uniform policy."""

    def make(
        prompt: Sequence[int],
        completion: Sequence[int],
        advantage: float = 1.0,
        temperature: float = 1.0,
        old_logprobs: Sequence[float] | None = None,
    ) -> TrainingRow:
        old = [-np.log(VOCAB)] * len(completion) if old_logprobs is None else old_logprobs
        return TrainingRow(
            experience_id="",
            tokens=(*prompt, *completion),
            action_mask=(False,) * len(prompt) + (True,) * len(completion),
            old_logprobs=(0.0,) * len(prompt) + tuple(float(value) for value in old),
            advantage=advantage,
            temperature=temperature,
        )

    return make


@pytest.fixture
def random_batch(row: Callable[..., TrainingRow]) -> Callable[..., Batch]:
    """Make a batch of groups of ragged completions, whose prompts share a start."""

    def make(seed: int, num_groups: int = 4, group_size: int = 4) -> Batch:
        generator = np.random.default_rng(seed)
        groups = []
        for _ in range(num_groups):
            prompt = (3, 4, 5, *generator.integers(3, VOCAB, generator.integers(1, 4)).tolist())
            group = [
                row(prompt, generator.integers(3, VOCAB, generator.integers(1, 6)).tolist(), float(generator.normal()))
                for _ in range(group_size)
            ]
            groups.append(tuple(group))
        return Batch(tuple(groups))

    return make


@pytest.fixture
def trainer(tiny_folder: Path) -> Callable[..., Trainer]:
    """Make a trainer of the tiny model: `trainer(algorithm="grpo", dtype="float32", total_steps=10, **config)`."""

    def make(
        algorithm: str = "grpo", dtype: str = "float32", total_steps: int = 10, args: dict[str, object] | None = None, **config: object
    ) -> Trainer:
        settings = TrainerConfig.model_validate({"learning_rate": 1e-3, **config})
        return Trainer(settings, Policy.load(tiny_folder, dtype), algorithms.build(algorithm, args or {}, "algorithm"), total_steps, seed=7)

    return make


@pytest.fixture
def group() -> Callable[..., Group]:
    """Make a group of single-turn attempts as the buffer gives them."""

    def make(
        rewards: Sequence[float | None],
        completions: Sequence[Sequence[int]],
        prompt: Sequence[int] = (3, 4),
        logprobs: Sequence[Sequence[float]] | None = None,
        errors: Sequence[str | None] | None = None,
        temperature: float = 1.0,
    ) -> Group:
        attempts = []
        for index, (reward, completion) in enumerate(zip(rewards, completions, strict=True)):
            sampled = logprobs[index] if logprobs else [-np.log(VOCAB)] * len(completion)
            experience = Experience(
                experience_id=f"e{index}",
                group_id="g",
                task_id="t",
                lease_id="l",
                attempt=index,
                turn_index=0,
                explorer="x",
                policy_version=0,
                policy_version_end=0,
                tokens=(*prompt, *completion),
                action_mask=(False,) * len(prompt) + (True,) * len(completion),
                logprobs=(0.0,) * len(prompt) + tuple(float(value) for value in sampled),
                temperature=temperature,
                prompt_length=len(prompt),
                prompt_text="",
                response_text="",
                reward=reward,
                stop_reason=StopReason.EOS,
                error=errors[index] if errors else None,
            )
            attempts.append(Attempt((experience,), reward))
        return Group("g", tuple(attempts))

    return make
