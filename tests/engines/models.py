"""Tiny random models of several architectures, and a tokenizer of single characters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, decoders, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

SYMBOLS = [*"abcdefghijklmnopqrstuvwxyz ?+=", "<eos>"]
VOCAB_SIZE = 40
"""Larger than the tokenizer's vocabulary, as in models with a padded embedding."""
EOS = SYMBOLS.index("<eos>")

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # wide, so that the next token depends on all that was said
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": None,
}
ARCHITECTURES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    "qwen3": lambda: Qwen3Config(**_SIZES),
    "gemma": lambda: GemmaConfig(**_SIZES),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB_SIZE, n_positions=512, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3, bos_token_id=None, eos_token_id=EOS
    ),
    # Layers that look back over some tokens only: all of them, every second one with capped scores, and five of six.
    "mistral": lambda: MistralConfig(**_SIZES, sliding_window=5),
    "gemma2": lambda: Gemma2Config(**_SIZES, sliding_window=5, query_pre_attn_scalar=8),
    "gemma3": lambda: Gemma3TextConfig(**{**_SIZES, "num_hidden_layers": 6}, sliding_window=5, query_pre_attn_scalar=8),
}


def build_model(architecture: str = "llama", seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A random model, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(ARCHITECTURES[architecture](), dtype=dtype).eval()


def write_tokenizer(folder: Path, eos: str = "<eos>") -> Path:
    """A tokenizer of single characters, `<eos>` among them."""
    fast = FastTokenizer(WordLevel({symbol: index for index, symbol in enumerate(SYMBOLS)}, unk_token="?"))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex("<eos>|."), "isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens(["<eos>"])
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return folder
