"""The rows that every side of a buffer benchmark stores, made from a seed: plain Python values, from which any peer builds its own.

A row is one answer of 192 tokens to a prompt of 64. Eight answers make a group, whose prompt they share, and eight groups a step, sampled
by one version of the policy. What a storage may notice is like the real thing: how often each token id comes, log-probs that
hardly repeat, texts of about four characters a token that compress as English does.

Example:
    >>> first, second = rows(2, seed=7)
    >>> first["tokens"][:64] == second["tokens"][:64], first["tokens"] == second["tokens"]
    (True, False)
    >>> second == next(rows(1, seed=7, start=1))
    True
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

VOCABULARY = 49_152
PROMPT_TOKENS = 64
ANSWER_TOKENS = 192
GROUP_SIZE = 8
BATCH_ROWS = 64
"""Rows of one step, and of one write."""

_SAMPLE = """
the of and to in that for it was with be by on not he his but at are this have from or had an one you we so if is as
no sum six two ten all out who up can may then do any now our man me way day did own new see get too add use how its
let x y n half box red cup sold each pay left more than find less time cost took when rate hour km per cent equals
gives step next plus minus divide square root total number answer first check both sides right there which hence
"""
_WORDS = tuple(_SAMPLE.split())
_ZIPF = 1.0 / (np.arange(VOCABULARY) + 2.7)
_CUMULATIVE = np.cumsum(_ZIPF / _ZIPF.sum())
"""Of Zipf's law as Mandelbrot corrected it; a byte-pair vocabulary is in the order of frequency, so a rank serves as the id."""


def rows(num: int, seed: int, start: int = 0) -> Iterator[dict[str, Any]]:
    """Make rows `start` to `start + num` of the endless table that `seed` names.

    A row depends on the seed and its own index alone, so several writers can each make their share.

    Args:
        num: Rows to make.
        seed: Names the table; at least 0.
        start: Index of the first row.

    Yields:
        `index, step, group, attempt, policy_version, prompt_length` (int), `tokens` (256 ids, the prompt's first), `action_mask` (256 bool,
        true for the answer's), `logprobs` (192 float32 values, of the answer's tokens), `temperature`, `reward` (0.0 or 1.0),
        `prompt_text`, `response_text` and `stop_reason` (`eos` or `length`).
    """
    mask = [False] * PROMPT_TOKENS + [True] * ANSWER_TOKENS
    for index in range(start, start + num):
        group, attempt = divmod(index, GROUP_SIZE)
        prompt = _tokens(np.random.default_rng((seed, group, 0)), PROMPT_TOKENS)
        random = np.random.default_rng((seed, group, 1 + attempt))
        answer = _tokens(random, ANSWER_TOKENS)
        yield {
            "index": index,
            "step": index // BATCH_ROWS,
            "group": group,
            "attempt": attempt,
            "policy_version": index // BATCH_ROWS,
            "tokens": prompt + answer,
            "action_mask": list(mask),
            "logprobs": (-random.lognormal(-1.8, 1.2, ANSWER_TOKENS)).astype(np.float32).tolist(),
            "prompt_length": PROMPT_TOKENS,
            "temperature": 1.0,
            "reward": float(random.integers(2)),
            "prompt_text": _text(prompt),
            "response_text": _text(answer),
            "stop_reason": "eos" if random.random() < 0.9 else "length",
        }


def _tokens(random: np.random.Generator, num: int) -> list[int]:
    ids = np.searchsorted(_CUMULATIVE, random.random(num)).clip(max=VOCABULARY - 1)
    return [int(token) for token in ids]


def _text(tokens: list[int]) -> str:
    return " ".join(_WORDS[token % len(_WORDS)] for token in tokens)
