"""What the tiny policy is made of, and recipes over it; no torch."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rft_core.config import set_key

SYMBOLS = ["<eos>", *"0123456789+=-", " ", "?"]
EOS = 0
"""Id of the end-of-sequence token."""
DIGITS = range(6)
"""Of the summands: 36 sums."""


SHAPE = {
    "vocab_size": len(SYMBOLS),
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 384,
    "max_position_embeddings": 32,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}


def write_shape(folder: Path) -> Path:
    """Config and tokenizer, as `rft plan` reads them."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], **SHAPE}))
    return folder


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of one token a character."""
    vocabulary = {symbol: index for index, symbol in enumerate(SYMBOLS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<eos>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}))


def write_sums(path: Path) -> Path:
    """Every sum of two digits, as tasks."""
    lines = [json.dumps({"question": f"{a}+{b}=", "answer": str(a + b), "response": str(a + b)}) for a in DIGITS for b in DIGITS]
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(folder: Path, policy: Path, **changes: object) -> dict[str, object]:
    """A recipe over the tiny policy; dotted keys change it."""
    sums = folder / "sums.jsonl"
    if not sums.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_sums(sums)
    task_format = {"prompt": "{question}", "chat": False}
    values: dict[str, object] = {
        "name": "tiny",
        "runs_dir": str(folder / "runs"),
        "steps": 6,
        "model": {"path": str(policy)},
        "data": {"train": {"source": str(sums), "format": task_format}, "evaluation": {"source": str(sums), "format": task_format}},
        "rollout": {"batch_groups": 4, "group_size": 4, "max_tokens": 4, "scorers": 1, "timeout_s": 60},
        "rewards": [{"name": "exact"}],
        "operators": [{"name": "drop_no_signal"}],
        "trainer": {"learning_rate": 4e-4},
        "sync": {"method": "shared"},
        "checkpoint": {"every": 2},
        "evaluation": {"num_tasks": 8},
        "monitor": {"name": "memory"},
    }
    for key, value in changes.items():
        set_key(values, key.replace("__", "."), value)
    return values
