"""A tiny policy that knows small sums about half the time: 0.3 M parameters, 16 symbols, made in the tests, no network.

Half the labels that it was taught are wrong, so sampling finds right answers and wrong ones: what reinforcement needs.
"""

import random
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tiny_files import DIGITS, EOS, SHAPE, SYMBOLS, write_tokenizer


def new_model(seed: int = 0) -> LlamaForCausalLM:
    """The untaught model."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SHAPE)).eval()


def teach(model: LlamaForCausalLM, steps: int = 150, batch: int = 128, seed: int = 0) -> None:
    """Supervised steps on sums of two digits, about every second one with a random label."""
    rng = random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)
    index = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (steps - step) / (steps / 2))
        rows = []
        for _ in range(batch):
            a, b = rng.choice(DIGITS), rng.choice(DIGITS)
            label = a + b if rng.random() < 0.5 else rng.randrange(2 * len(DIGITS) - 1)
            tokens = [index[c] for c in f"{a}+{b}={label}"] + [EOS]
            rows.append(tokens + [EOS] * (7 - len(tokens)))
        tokens_BT = torch.tensor(rows)
        logits = model(input_ids=tokens_BT[:, :-1], use_cache=False).logits[:, 3:]
        targets = tokens_BT[:, 4:]
        # The padding after the first end-of-sequence token is not a target.
        wanted = (targets == EOS).long().cumsum(1) - (targets == EOS).long() == 0
        loss = torch.nn.functional.cross_entropy(logits[wanted], targets[wanted])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def write_policy(folder: Path, steps: int = 150) -> Path:
    """Teach a policy and write it as a Hugging Face folder."""
    model = new_model()
    teach(model, steps)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder
