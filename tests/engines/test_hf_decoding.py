"""What the `hf` engine samples is what a plain pass of the same model says."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rft_core.engines.hf import HFEngine
from rft_core.engines.hf_torch import cache
from rft_core.tokens import Tokenizer
from rft_core.types import Completion, GenerationRequest, StopReason, seed_of
from tests.engines.models import ARCHITECTURES, EOS, VOCAB_SIZE, build_model, write_tokenizer

Build = Callable[..., Any]

SHARED = tuple(range(3, 14))
PROMPTS = (SHARED[:3], (*SHARED, 1), (*SHARED, 2, 5, 6), (9,), (*SHARED, 2, 5, 7, 8, 8), (*SHARED, 1))
"""Of several lengths, with common starts, one inside another, two the same."""


def requests(
    temperature: float, count: int = 14, max_tokens: int = 9, prompts: Sequence[tuple[int, ...]] = PROMPTS
) -> list[GenerationRequest]:
    return [
        GenerationRequest(prompts[index % len(prompts)], max_tokens, temperature, seed_of(index), order=(index % len(prompts), index, 0))
        for index in range(count)
    ]


async def ask(engine: HFEngine, wanted: Sequence[GenerationRequest]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(request) for request in wanted)))


def plain_logprobs(model: Any, request: GenerationRequest, completion: Completion) -> torch.Tensor:
    """Log-probs of the completion by one pass over the whole sequence, with the plainest attention."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([[*request.prompt_tokens, *completion.tokens]]), use_cache=False).logits[0].double()
    start = len(request.prompt_tokens) - 1
    scaled = logits[start:-1] / (request.temperature or 1)
    return torch.log_softmax(scaled, -1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]


def worst_difference(model: Any, wanted: Sequence[GenerationRequest], completions: Sequence[Completion]) -> float:
    return max(
        float((plain_logprobs(model, request, completion) - torch.tensor(completion.logprobs, dtype=torch.float64)).abs().max())
        for request, completion in zip(wanted, completions, strict=True)
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
async def test_logprobs_are_those_of_a_plain_pass(build_engine: Build, architecture: str, temperature: float) -> None:
    """Over refills, early ends, prompts of different lengths, and sliding windows shorter than the prompts."""
    engine = build_engine(max_rows=4)
    engine._runner._eos_ids = frozenset(range(0, VOCAB_SIZE, 8))  # so that some answers end early
    await engine.load(1, build_model(architecture))
    wanted = requests(temperature, count=20)
    completions = await ask(engine, wanted)
    reasons = Counter(completion.stop_reason for completion in completions)
    assert reasons[StopReason.EOS] >= 1
    assert reasons[StopReason.LENGTH] >= 1
    assert worst_difference(build_model(architecture), wanted, completions) < 1e-4


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
async def test_small_prefill_budgets_change_nothing(build_engine: Build, architecture: str) -> None:
    wanted = requests(1.0)
    whole, split = build_engine(dtype="float64"), build_engine(dtype="float64", prefill_tokens=8, max_rows=3)
    for engine in (whole, split):
        await engine.load(1, build_model(architecture, dtype=torch.float64))
    assert [c.tokens for c in await ask(whole, wanted)] == [c.tokens for c in await ask(split, wanted)]


async def test_long_answers_outgrow_the_first_memory(build_engine: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "GROWTH", 4)
    engine = build_engine(max_context=128, max_rows=2)
    await engine.load(1, build_model())
    engine._runner._eos_ids = frozenset()  # nothing may end early here
    wanted = requests(1.0, count=3, max_tokens=70)
    completions = await ask(engine, wanted)
    assert [len(completion.tokens) for completion in completions] == [70, 70, 70]
    assert worst_difference(build_model(), wanted, completions) < 1e-4


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "gemma3"])
async def test_greedy_answers_are_those_of_transformers(build_engine: Build, architecture: str) -> None:
    engine = build_engine(dtype="float64")
    model = build_model(architecture, dtype=torch.float64)
    await engine.load(1, model)
    wanted = requests(0.0, count=len(PROMPTS), max_tokens=12)
    for request, completion in zip(wanted, await ask(engine, wanted), strict=True):
        prompt = torch.tensor([request.prompt_tokens])
        generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=EOS)
        assert list(completion.tokens) == generated[0, prompt.shape[1] :].tolist()
        assert (
            float((plain_logprobs(model, request, completion) - torch.tensor(completion.logprobs, dtype=torch.float64)).abs().max()) < 1e-5
        )


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2", "gemma2"])
async def test_a_sample_does_not_depend_on_its_neighbours(build_engine: Build, architecture: str) -> None:
    """In double precision, where rounding can't decide a sample."""
    engine = build_engine(dtype="float64", max_rows=5)
    await engine.load(1, build_model(architecture, dtype=torch.float64))
    wanted = requests(1.0)
    together = await ask(engine, wanted)
    for request, completion in zip(wanted, together, strict=True):
        alone = await engine.generate(request)
        assert alone.tokens == completion.tokens
        assert alone.logprobs == pytest.approx(completion.logprobs, abs=1e-6)


async def test_temperatures_mix_in_one_batch(build_engine: Build) -> None:
    engine = build_engine(dtype="float64")
    await engine.load(1, build_model(dtype=torch.float64))
    wanted = [GenerationRequest(PROMPTS[1], 8, temperature, seed=9, order=(i,)) for i, temperature in enumerate((0.0, 0.6, 1.0, 1.7))]
    together = await ask(engine, wanted)
    assert [completion.tokens for completion in together] == [(await engine.generate(request)).tokens for request in wanted]
    assert worst_difference(build_model(dtype=torch.float64), wanted, together) < 1e-5


async def test_the_same_requests_give_the_same_bits_in_any_order_of_arrival(build_engine: Build) -> None:
    engine = build_engine(max_rows=4)
    await engine.load(1, build_model())
    wanted = requests(1.0)
    first = await ask(engine, wanted)
    assert await ask(engine, wanted) == first
    backwards = await ask(engine, wanted[::-1])
    assert backwards[::-1] == first


async def test_samples_follow_the_softmax(build_engine: Build) -> None:
    """Chi-square, tokens that are expected less than 5 times taken together: within 4 standard deviations of its mean."""
    engine, model = build_engine(max_rows=512), build_model()
    await engine.load(1, model)
    count, prompt = 4000, PROMPTS[2]
    completions = await ask(engine, [GenerationRequest(prompt, 1, 0.8, seed_of("draw", index), (index,)) for index in range(count)])
    with torch.no_grad():
        expected = count * torch.softmax(model(torch.tensor([prompt])).logits[0, -1].double() / 0.8, -1)
    drawn = torch.bincount(torch.tensor([completion.tokens[0] for completion in completions]), minlength=VOCAB_SIZE)
    common = expected >= 5
    cells = [torch.cat([counts[common], counts[~common].sum()[None]]) for counts in (expected, drawn)]
    statistic = float(((cells[1] - cells[0]) ** 2 / cells[0]).sum())
    degrees = int(common.sum())
    assert degrees >= 10, "the model is too sure of itself for this test"
    assert statistic < degrees + 4 * (2 * degrees) ** 0.5


async def test_every_end_of_sequence_token_ends_an_answer_and_is_kept(build_engine: Build, tmp_path: Path) -> None:
    """Models may name several; the second one is set to a token that this model says greedily, not as its first."""
    model = build_model(dtype=torch.float64)
    free = build_engine(dtype="float64")
    await free.load(1, model)
    said = (await free.generate(GenerationRequest(PROMPTS[1], 12, 0.0, seed=0))).tokens
    place = next(index for index in range(2, 12) if said[index] not in said[:index])
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [EOS, said[place]]}))
    engine = build_engine(dtype="float64", tokenizer=Tokenizer(write_tokenizer(tmp_path)))
    await engine.load(1, model)
    completion = await engine.generate(GenerationRequest(PROMPTS[1], 12, 0.0, seed=0))
    assert completion.tokens == said[: place + 1]
    assert len(completion.logprobs) == place + 1
    assert completion.stop_reason is StopReason.EOS


async def test_the_context_limits_an_answer(build_engine: Build) -> None:
    engine = build_engine(max_context=16)
    await engine.load(1, build_model("gpt2"))
    engine._runner._eos_ids = frozenset()
    completion = await engine.generate(GenerationRequest(PROMPTS[1], 100, 1.0, seed=0))
    assert len(completion.tokens) == 16 - len(PROMPTS[1])
    assert completion.stop_reason is StopReason.LENGTH


@pytest.mark.parametrize("architecture", list(ARCHITECTURES))
async def test_scores_are_those_of_a_plain_pass(build_engine: Build, architecture: str) -> None:
    engine = build_engine()
    await engine.load(1, build_model(architecture))
    tokens = (*PROMPTS[4], 20, 21, 3)
    everything = Completion(tokens[1:], (), StopReason.LENGTH, 1, 1)
    plain = plain_logprobs(build_model(architecture), GenerationRequest(tokens[:1], 1, 1.0, 0), everything)
    assert await engine.score(tokens) == pytest.approx(plain.tolist(), abs=1e-5)
    assert await engine.score(tokens[:1]) == ()


class Passes:
    """Shapes of what passes a module, by a hook."""

    def __init__(self, module: Any) -> None:
        self.shapes: list[tuple[int, int]] = []
        module.register_forward_pre_hook(lambda _, args, kwargs: self.shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True)

    @property
    def prompts(self) -> list[int]:
        """Tokens of each pass over prompts."""
        return [tokens for _, tokens in self.shapes if tokens > 1]

    @property
    def rows(self) -> list[int]:
        """Rows of each decoding step."""
        return [rows for rows, tokens in self.shapes if tokens == 1]


async def test_a_prompt_is_computed_once_for_all_who_share_it_also_over_refills(build_engine: Build) -> None:
    engine, model = build_engine(max_rows=3), build_model()
    await engine.load(1, model)
    passes = Passes(model)
    await ask(engine, requests(1.0, count=18, prompts=[(*SHARED, 1), (*SHARED, 2)]))
    assert passes.prompts == [len(SHARED) + 2]
    assert passes.rows[0] == 3


async def test_finished_rows_make_room_and_are_dropped(build_engine: Build) -> None:
    engine, model = build_engine(max_rows=4), build_model()
    await engine.load(1, model)
    passes = Passes(model)
    completions = await ask(engine, requests(1.0, count=14))
    fed = sum(len(completion.tokens) - 1 for completion in completions)
    assert sum(passes.rows) == fed, "a row was fed after its end"
    last_refill = max(index for index, rows in enumerate(passes.rows) if rows == 4)
    assert passes.rows[:last_refill] == [4] * last_refill, "a slot stayed empty while requests waited"
    assert passes.rows[last_refill:] == sorted(passes.rows[last_refill:], reverse=True)


async def test_prompts_pass_within_the_budget_or_alone(build_engine: Build) -> None:
    engine, model = build_engine(prefill_tokens=14, max_rows=2), build_model()
    await engine.load(1, model)
    passes = Passes(model)
    longer = tuple(range(1, 21))
    await ask(engine, requests(1.0, count=4, prompts=[(*SHARED, 1), (*SHARED, 2, 5), longer, (9, 9, 9)]))
    assert passes.prompts == [len(SHARED) + 3, len(longer), 3]
