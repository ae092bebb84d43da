import asyncio
from concurrent.futures import ThreadPoolExecutor
from math import log
from typing import Any

import pytest

from rft_core.engines.base import engines
from rft_core.engines.scripted import ScriptedConfig, ScriptedEngine
from rft_core.errors import EmptyPromptError, EngineError, PromptTooLongError
from rft_core.tokens import Tokenizer
from rft_core.types import GenerationRequest, StopReason


def engine(tokenizer: Tokenizer, **args: Any) -> ScriptedEngine:
    return ScriptedEngine(ScriptedConfig(**args), tokenizer=tokenizer, max_context=32, dtype="float32", compute=ThreadPoolExecutor(1))


def ask(tokenizer: Tokenizer, text: str, *, attempt: int = 0, **changes: Any) -> GenerationRequest:
    values: dict[str, Any] = {"max_tokens": 10, "temperature": 1.0, "seed": 0, "order": (0, attempt, 0), **changes}
    return GenerationRequest(tokenizer.encode(text), **values)


async def test_it_gives_the_answer_of_the_first_key_that_the_prompt_contains(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer, answers={"cat": ("meow",), "at": ("other",)}, default=("none",))
    said = [tokenizer.decode((await scripted.generate(ask(tokenizer, text))).tokens) for text in ("a cat", "a hat", "a dog")]
    assert said == ["meow", "other", "none"]


async def test_an_answer_ends_with_the_end_of_sequence_token(tokenizer: Tokenizer) -> None:
    completion = await engine(tokenizer, default=("yes",)).generate(ask(tokenizer, "a"))
    assert completion.tokens == (*tokenizer.encode("yes"), tokenizer.eos_id)
    assert completion.stop_reason is StopReason.EOS
    assert completion.logprobs == (-log(tokenizer.vocab_size),) * 4


async def test_an_answer_is_cut_to_max_tokens_and_to_the_context(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer, default=("abcdefgh",))
    cut = await scripted.generate(ask(tokenizer, "a", max_tokens=8))
    assert (tokenizer.decode(cut.tokens), cut.stop_reason, len(cut.logprobs)) == ("abcdefgh", StopReason.LENGTH, 8)
    assert (await scripted.generate(ask(tokenizer, "a", max_tokens=9))).stop_reason is StopReason.EOS
    assert len((await scripted.generate(ask(tokenizer, "a" * 30))).tokens) == 2


async def test_the_seed_draws_among_answers_and_greedy_takes_the_first(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer, default=("a", "b", "c"))

    async def say(seed: int, temperature: float) -> str:
        return tokenizer.decode((await scripted.generate(ask(tokenizer, "x", seed=seed, temperature=temperature))).tokens)

    drawn = [await say(seed, 1.0) for seed in range(30)]
    assert set(drawn) == {"a", "b", "c"}
    assert drawn == [await say(seed, 1.0) for seed in range(30)]
    assert [await say(seed, 0.0) for seed in range(5)] == ["a"] * 5


async def test_attempts_can_take_answers_in_turn(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer, default=("a", "b"), by_attempt=True)
    completions = [await scripted.generate(ask(tokenizer, "x", attempt=attempt, seed=7)) for attempt in range(4)]
    assert [tokenizer.decode(completion.tokens) for completion in completions] == ["a", "b", "a", "b"]


async def test_prompts_can_fail_or_hang(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer, fail=("bad",), hang=("stuck",), default=("ok",))
    with pytest.raises(EngineError):
        await scripted.generate(ask(tokenizer, "a bad one"))
    hung = asyncio.create_task(scripted.generate(ask(tokenizer, "a stuck one")))
    assert tokenizer.decode((await scripted.generate(ask(tokenizer, "a good one"))).tokens) == "ok"
    done, _ = await asyncio.wait([hung], timeout=0.05)
    assert not done
    hung.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hung


async def test_impossible_prompts_are_refused(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer)
    with pytest.raises(EmptyPromptError):
        await scripted.generate(ask(tokenizer, ""))
    with pytest.raises(PromptTooLongError):
        await scripted.generate(ask(tokenizer, "a" * 32))


async def test_a_completion_carries_the_versions_of_its_first_and_last_token(tokenizer: Tokenizer) -> None:
    scripted = engine(tokenizer, delay_s=0.01)
    await scripted.load(3, None)
    running = asyncio.create_task(scripted.generate(ask(tokenizer, "a")))
    await asyncio.sleep(0)
    await scripted.load(4, None)
    completion = await running
    assert (completion.policy_version, completion.policy_version_end, scripted.version) == (3, 4, 4)


async def test_scores_are_uniform(tokenizer: Tokenizer) -> None:
    assert await engine(tokenizer).score([1, 2, 3]) == (-log(tokenizer.vocab_size),) * 2


def test_it_is_registered() -> None:
    assert engines.get("scripted", "rollout.engine").factory is ScriptedEngine
    assert "scripted" in engines.names()
