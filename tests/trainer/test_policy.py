import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from rft_core.errors import ModelError
from rft_core.trainer import policy as policy_module
from rft_core.trainer.batch import Batch, TrainingRow
from rft_core.trainer.policy import Policy

SIZES = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SIZES = {
    "vocab_size": 24,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ARCHITECTURES = {
    "llama": lambda: LlamaConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES),
    "gpt2": lambda: GPT2Config(**GPT2_SIZES),
    "gemma2": lambda: Gemma2Config(**SIZES),
    "gemma3": lambda: Gemma3TextConfig(**SIZES),
    "mistral": lambda: MistralConfig(**SIZES),
    "granite": lambda: GraniteConfig(**SIZES, logits_scaling=3.0),
    "cohere": lambda: CohereConfig(**SIZES),
}


def _model(config: Any) -> PreTrainedModel:
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


def _plain(model: PreTrainedModel, rows: tuple[TrainingRow, ...]) -> torch.Tensor:
    """Log-probs by one ordinary forward a row, without any of the code under test."""
    width = max(len(row.tokens) for row in rows)
    lines = []
    for row in rows:
        ids = torch.tensor([row.tokens])
        logprobs = (model(input_ids=ids).logits[0] / row.temperature).log_softmax(-1)
        line = [logprobs[t - 1, row.tokens[t]] if row.action_mask[t] else torch.zeros(()) for t in range(len(row.tokens))]
        lines.append(torch.stack(line + [torch.zeros(())] * (width - len(line))))
    return torch.stack(lines)


def _relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    a, b = torch.cat([g.flatten() for g in ours]), torch.cat([g.flatten() for g in theirs])
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("packing", ["packed", "padded"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_equal_to_a_plain_forward(name: str, packing: Any, random_batch: Callable[..., Batch]) -> None:
    policy = Policy(_model(ARCHITECTURES[name]()))
    policy.check(packing)
    rows = random_batch(5).rows
    ours, theirs = policy.logprobs(rows, packing), _plain(policy.module, rows)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    parameters = [parameter for _, parameter in policy.named_parameters()]
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(0))
    our_gradient = torch.autograd.grad((ours * weights).sum(), parameters)
    their_gradient = torch.autograd.grad((theirs * weights).sum(), parameters)
    assert _relative(list(our_gradient), list(their_gradient)) < 1e-5


def test_each_row_has_its_own_temperature(tiny_folder: Path, row: Callable[..., TrainingRow]) -> None:
    policy = Policy.load(tiny_folder)
    rows = tuple(row([3, 4], [5, 6], temperature=temperature) for temperature in (1.0, 0.6, 1.7))
    ours = policy.logprobs(rows, "packed")
    torch.testing.assert_close(ours, _plain(policy.module, rows), rtol=0, atol=1e-5)
    assert abs(ours[0, 2] - ours[1, 2]) > 1e-2


def test_greedy_rows_count_as_temperature_one(tiny_folder: Path, row: Callable[..., TrainingRow]) -> None:
    policy = Policy.load(tiny_folder)
    greedy, sampled = ([row([3, 4], [5, 6], temperature=temperature)] for temperature in (0.0, 1.0))
    assert torch.equal(policy.logprobs(greedy, "packed"), policy.logprobs(sampled, "packed"))


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_many_chunks_give_the_same(
    tiny_folder: Path, packing: Any, random_batch: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy.load(tiny_folder)
    parameters = [parameter for _, parameter in policy.named_parameters()]
    rows = random_batch(6).rows
    whole = policy.logprobs(rows, packing)
    expected = torch.autograd.grad(whole.square().sum(), parameters)
    monkeypatch.setattr(policy_module, "CHUNK_LOGITS", 24 * 5)
    chunked = policy.logprobs(rows, packing)
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-5)
    assert _relative(list(torch.autograd.grad(chunked.square().sum(), parameters)), list(expected)) < 1e-5


def test_common_starts_pass_the_model_once(tiny_folder: Path, row: Callable[..., TrainingRow]) -> None:
    policy = Policy.load(tiny_folder)
    sizes = []
    policy.module.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    head = []
    policy.module.get_output_embeddings().register_forward_pre_hook(lambda module, args: head.append(len(args[0])))
    policy.logprobs([row([3, 4, 5, 6], [7, 8, 9]), row([3, 4, 5, 6], [7, 9]), row([3, 4, 5, 6], [8])], "packed")
    # Inputs: 3 4 5 6 7 8, 3 4 5 6 7 and 3 4 5 6. Logits are only made behind 6, 7 and 8.
    assert sizes == [6]
    assert head == [3]


def test_architectures_that_can_not_be_packed_are_refused() -> None:
    policy = Policy(_model(BloomConfig(vocab_size=24, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3)))
    policy.check("padded")
    with pytest.raises(ModelError, match="type bloom.*set `trainer.packing: padded`"):
        policy.check("packed")


def test_a_mask_that_is_ignored_is_found(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.load(tiny_folder)
    states = policy._states
    monkeypatch.setattr(policy, "_states", lambda ids, **inputs: states(ids, position_ids=inputs["position_ids"]))
    with pytest.raises(ModelError, match="log-probs that are .* off"):
        policy.check("packed")


@pytest.mark.parametrize("config", [MistralConfig(**SIZES, sliding_window=6), Gemma3TextConfig(**SIZES, sliding_window=6)])
def test_sequences_beyond_a_sliding_window_are_refused_when_packed(config: Any, row: Callable[..., TrainingRow]) -> None:
    policy = Policy(_model(config))
    fits, too_long = (row([3, 4, 5], range(6, 6 + length)) for length in (4, 5))
    torch.testing.assert_close(policy.logprobs([fits], "packed"), _plain(policy.module, (fits,)), rtol=0, atol=1e-4)
    with pytest.raises(ModelError, match="7 tokens is longer than the model's attention window of 6"):
        policy.logprobs([too_long], "packed")
    torch.testing.assert_close(policy.logprobs([too_long], "padded"), _plain(policy.module, (too_long,)), rtol=0, atol=1e-4)


def test_saved_folder_is_an_ordinary_one(tiny_folder: Path, tmp_path: Path, row: Callable[..., TrainingRow]) -> None:
    policy = Policy.load(tiny_folder)
    policy.save(tmp_path, tiny_folder)
    assert (tmp_path / "tokenizer.json").read_bytes() == (tiny_folder / "tokenizer.json").read_bytes()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    rows = (row([3, 4], [5, 6]),)
    assert torch.equal(_plain(model, rows), _plain(policy.module, rows))


def test_saving_twice_gives_the_same_bytes(tiny_folder: Path, tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Policy.load(tiny_folder).save(tmp_path / name, tiny_folder)
        digests.append({file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (tmp_path / name).iterdir()})
    assert digests[0] == digests[1]


def test_loaded_weights_do_not_depend_on_the_file(tiny_folder: Path, tmp_path: Path, row: Callable[..., TrainingRow]) -> None:
    source = Policy.load(tiny_folder)
    source.save(tmp_path, tiny_folder)
    policy = Policy.load(tmp_path)
    assert all(parameter.data_ptr() % 64 == 0 for _, parameter in policy.named_parameters())
    before = policy.logprobs([row([3], [4])], "packed")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    assert torch.equal(policy.logprobs([row([3], [4])], "packed"), before)


def test_tied_weights_stay_tied(tiny_folder: Path) -> None:
    policy = Policy.load(tiny_folder)
    assert policy.module.get_output_embeddings().weight is policy.module.get_input_embeddings().weight
    assert sum("embed" in name or "lm_head" in name for name, _ in policy.named_parameters()) == 1


def test_folders_without_a_whole_model_are_refused(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no causal language model can be loaded"):
        Policy.load(tmp_path)
    Policy.load(tiny_folder).save(tmp_path, tiny_folder)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="no causal language model can be loaded"):
        Policy.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights.write_bytes(whole)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ModelError, match=r"lacks the weights model\.layers\.2"):
        Policy.load(tmp_path)
