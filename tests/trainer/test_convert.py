import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rft_core.base_model import BaseModel
from rft_core.errors import ModelError
from rft_core.tokens import Tokenizer
from rft_core.trainer.convert import materialise
from rft_core.trainer.policy import Policy


def test_a_folder_is_used_as_it_is(tiny_folder: Path) -> None:
    assert materialise(BaseModel(str(tiny_folder), tiny_folder)) == tiny_folder


def _write_gguf(file: Path, policy: Policy) -> None:
    """The tiny model as llama.cpp keeps it: own names, and query and key rows in another order."""
    config = policy.module.config
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrst", "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * 21)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in policy.named_parameters():
        tensor = parameter.detach().numpy()
        for part, num_heads in heads.items():
            if part in name:
                tensor = tensor.reshape(num_heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_converted_once(tiny_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = Policy.load(tiny_folder)
    _write_gguf(tmp_path / "tiny.gguf", source)
    model = BaseModel("package:tiny/tiny.gguf", tmp_path / "cache" / "tiny", tmp_path / "tiny.gguf")
    assert not model.ready
    folder = materialise(model)
    assert capfd.readouterr().err == ""
    converted = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([[3, 4, 5, 6, 7]])
    torch.testing.assert_close(converted(input_ids=ids).logits, source.module(input_ids=ids).logits, rtol=0, atol=1e-5)
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode("cab") == (5, 23)
    assert tokenizer.eos_ids == {2}
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert materialise(model) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_a_damaged_gguf_file_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    model = BaseModel("package:bad/bad.gguf", tmp_path / "cache" / "bad", tmp_path / "bad.gguf")
    with pytest.raises(ModelError, match="bad.gguf can't be converted"):
        materialise(model)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


def test_an_id_that_can_not_be_downloaded_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="nobody/nothing can't be downloaded") as caught:
        materialise(BaseModel("nobody/nothing", None))
    assert "\n" not in str(caught.value)
