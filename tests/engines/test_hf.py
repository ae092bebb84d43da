"""How the `hf` engine gathers requests, loads weights, and what it does when things go wrong."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, MambaConfig, MambaForCausalLM, MptConfig, MptForCausalLM

from rft_core.engines.base import engines
from rft_core.engines.hf import HFEngine
from rft_core.errors import EmptyPromptError, EngineError, ModelError, PromptTooLongError
from rft_core.types import Completion, GenerationRequest, seed_of
from tests.engines.models import build_model

Build = Callable[..., Any]

PROMPT = (3, 4, 5, 6)
SOON_S = 0.05
"""Long enough for anything that is not waiting for something; nothing depends on more."""


def request(index: int = 0, *, max_tokens: int = 6, prompt: tuple[int, ...] = PROMPT, temperature: float = 1.0) -> GenerationRequest:
    return GenerationRequest((*prompt, 7 + index % 5), max_tokens, temperature, seed_of(index), order=(index,))


def start(engine: HFEngine, *wanted: GenerationRequest) -> list["asyncio.Task[Completion]"]:
    return [asyncio.create_task(engine.generate(one)) for one in wanted]


@pytest.fixture
async def engine(build_engine: Build) -> HFEngine:
    built: HFEngine = build_engine(patience_s=60)
    await built.load(1, build_model())
    return built


def count_batches(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that the engine runs from now on."""
    sizes: list[int] = []
    run = engine._runner.run

    def counted(rows: Any, finish: Any) -> None:
        sizes.append(len(rows))
        run(rows, finish)

    monkeypatch.setattr(engine._runner, "run", counted)
    return sizes


async def test_a_batch_starts_when_all_who_may_ask_wait_for_it(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_batches(engine, monkeypatch)
    engine.expect(lambda: 3)
    early = start(engine, request(0), request(1))
    done, _ = await asyncio.wait(early, timeout=SOON_S)
    assert not done
    await asyncio.gather(*early, *start(engine, request(2)))
    assert sizes == [3]


async def test_a_batch_starts_when_the_others_will_not_ask_any_more(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_batches(engine, monkeypatch)
    expected = 3
    engine.expect(lambda: expected)
    waiting = start(engine, request(0), request(1))
    await asyncio.sleep(SOON_S)
    expected = 2
    await asyncio.gather(*waiting)
    assert sizes == [2]


async def test_one_who_never_asks_stops_nobody(build_engine: Build) -> None:
    engine = build_engine(patience_s=0.02)
    await engine.load(1, build_model())
    engine.expect(lambda: 3)
    assert len(await asyncio.gather(*start(engine, request(0), request(1)))) == 2


async def test_requests_that_arrive_during_a_batch_form_the_next_one(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_batches(engine, monkeypatch)

    async def two_turns(index: int) -> None:
        first = await engine.generate(request(index, max_tokens=2 + 3 * index))
        await engine.generate(request(index, prompt=first.tokens))

    engine.expect(lambda: 4)
    await asyncio.gather(*(two_turns(index) for index in range(4)))
    assert sizes == [4, 4]


async def test_a_withdrawn_request_leaves_its_batch_and_the_others_are_answered(engine: HFEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = count_batches(engine, monkeypatch)
    engine.expect(lambda: 3)
    first, second = start(engine, request(0), request(1))
    await asyncio.sleep(SOON_S)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    third, fourth = start(engine, request(2), request(3))
    assert len(await asyncio.gather(first, third, fourth)) == 3
    assert sizes == [3]


async def test_a_running_row_is_dropped_at_its_next_token(build_engine: Build) -> None:
    """Its row would take 400 steps; the model itself withdraws it at the fifth."""
    engine, model = build_engine(max_context=512), build_model()
    await engine.load(1, model)
    engine._runner._eos_ids = frozenset()
    loop, rows = asyncio.get_running_loop(), []
    long, short = start(engine, request(0, max_tokens=400), request(1, max_tokens=12))

    def watch(_: Any, args: Any, kwargs: Any) -> None:
        rows.append(kwargs["input_ids"].shape[0])
        if len(rows) == 5:
            cancelled = threading.Event()
            loop.call_soon_threadsafe(lambda: (long.cancel(), loop.call_soon(lambda: loop.call_soon(cancelled.set))))
            assert cancelled.wait(timeout=30)

    model.register_forward_pre_hook(watch, with_kwargs=True)
    assert len((await short).tokens) == 12
    with pytest.raises(asyncio.CancelledError):
        await long
    # One pass over the prompts, four steps of both rows (the fifth pass was under way), then the short one alone.
    assert rows == [1, 2, 2, 2, 2] + [1] * 7


async def test_a_failure_is_told_to_its_batch_alone(engine: HFEngine) -> None:
    model = build_model()
    await engine.load(2, model)
    broken = True

    def fail(*_: Any) -> None:
        if broken:
            raise RuntimeError("out of memory")

    model.register_forward_pre_hook(fail)
    results = await asyncio.gather(*start(engine, request(0), request(1)), return_exceptions=True)
    assert all(isinstance(result, EngineError) and "RuntimeError: out of memory" in str(result) for result in results)
    assert all(result.retryable for result in results if isinstance(result, EngineError))
    assert results[0] is not results[1]
    broken = False
    assert len((await engine.generate(request(0))).tokens) >= 1


async def test_weights_that_are_not_finite_are_named(engine: HFEngine) -> None:
    model = build_model()
    await engine.load(2, model)
    with torch.no_grad():
        model.get_output_embeddings().weight[3, 0] = torch.nan
    with pytest.raises(EngineError, match="logits are not finite"):
        await engine.generate(request(0))


async def test_impossible_requests_are_refused(engine: HFEngine) -> None:
    with pytest.raises(EmptyPromptError):
        await engine.generate(GenerationRequest((), 5, 1.0, 0))
    with pytest.raises(PromptTooLongError):
        await engine.generate(request(0, prompt=PROMPT * 16))
    with pytest.raises(EngineError, match="token 40 and the model knows 40"):
        await engine.generate(request(0, prompt=(40,)))
    with pytest.raises(EmptyPromptError):
        await engine.score(())
    with pytest.raises(PromptTooLongError):
        await engine.score(PROMPT * 17)


async def test_without_weights_there_is_no_answer(build_engine: Build) -> None:
    engine = build_engine()
    assert engine.version == -1
    with pytest.raises(EngineError, match="no weights are loaded"):
        await engine.generate(request(0))
    with pytest.raises(EngineError, match="no weights are loaded"):
        await engine.score(PROMPT)


async def test_closing_fails_those_who_wait(engine: HFEngine) -> None:
    engine.expect(lambda: 3)
    waiting = start(engine, request(0), request(1))
    await asyncio.sleep(0)
    await engine.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, EngineError) and "closed" in str(result) for result in results)


async def test_the_event_loop_lives_while_the_model_computes(engine: HFEngine) -> None:
    model, threads = build_model(), set()
    await engine.load(2, model)
    model.register_forward_pre_hook(lambda *_: threads.add(threading.current_thread().name))
    running, ticks = start(engine, *(request(index, max_tokens=40) for index in range(8))), 0
    while not all(task.done() for task in running):
        await asyncio.sleep(0.001)
        ticks += 1
    assert ticks > 5
    assert threads == {"compute_0"}


def test_it_serves_one_event_loop_after_another(tokenizer: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as compute:
        engine = engines.build("hf", {}, "rollout.engine", tokenizer=tokenizer, max_context=64, dtype="float32", compute=compute)
        asyncio.run(engine.load(1, build_model()))
        first, second = asyncio.run(engine.generate(request(0))), asyncio.run(engine.generate(request(0)))
    assert first == second


async def greedy(engine: HFEngine) -> Completion:
    return await engine.generate(request(0, max_tokens=20, temperature=0.0))


async def test_other_weights_give_other_answers_and_nothing_of_the_old_ones_is_left(engine: HFEngine, build_engine: Build) -> None:
    """The same prompt before and after, as an engine that kept the prompt's keys and values would get it wrong."""
    old, other = await greedy(engine), build_model(seed=1)
    await engine.load(2, other)
    new = await greedy(engine)
    fresh = build_engine()
    await fresh.load(2, other)
    assert new == await greedy(fresh)
    assert new.tokens != old.tokens
    assert (old.policy_version, old.policy_version_end) == (1, 1)
    assert (new.policy_version, new.policy_version_end, engine.version) == (2, 2, 2)


async def test_a_load_waits_for_the_running_batch(engine: HFEngine) -> None:
    running = start(engine, *(request(index, max_tokens=30) for index in range(4)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await engine.load(2, build_model(seed=1))
    assert {(await task).policy_version for task in running} == {1}
    assert (await greedy(engine)).policy_version == 2


async def test_a_folder_gives_the_same_bits_as_the_module_that_wrote_it(
    engine: HFEngine, build_engine: Build, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_model().save_pretrained(tmp_path)
    capfd.readouterr()
    loaded = build_engine()
    await loaded.load(1, tmp_path)
    assert await greedy(loaded) == await greedy(engine)
    assert capfd.readouterr() == ("", ""), "loading prints nothing"


async def test_a_folder_is_loaded_in_the_wanted_type(build_engine: Build, tmp_path: Path) -> None:
    build_model().save_pretrained(tmp_path)
    engine = build_engine(dtype="bfloat16")
    await engine.load(1, tmp_path)
    assert engine._runner._model.dtype == torch.bfloat16
    answer = await greedy(engine)
    scores = await engine.score((*request(0).prompt_tokens, *answer.tokens))
    assert answer.logprobs == pytest.approx(scores[-len(answer.tokens) :], abs=0.3)


async def test_a_damaged_or_missing_folder_is_named(engine: HFEngine, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path / "nothing")):
        await engine.load(2, tmp_path / "nothing")
    build_model().save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks the weights model\.layers\.1\.mlp\.up_proj\.weight"):
        await engine.load(2, tmp_path)
    with pytest.raises(EngineError, match="no weights are loaded"):
        await engine.generate(request(0))


async def test_a_shared_module_is_used_as_it_is_and_left_as_it_was(engine: HFEngine) -> None:
    """In training, with gradients, dropout in one part only, and another kind of attention."""
    model = build_model("gpt2")
    model.train()
    model.transformer.drop.eval()
    model.set_attn_implementation("eager")
    model(torch.tensor([PROMPT]), labels=torch.tensor([PROMPT])).loss.backward()
    modes = [part.training for part in model.modules()]
    state = {name: (p.data_ptr(), p.detach().clone(), p.grad.clone(), p.requires_grad) for name, p in model.named_parameters()}
    await engine.load(2, model)
    assert await greedy(engine) == await greedy(engine), "dropout would make them differ"
    await engine.score(PROMPT)
    assert [part.training for part in model.modules()] == modes
    assert model.config._attn_implementation == "eager"
    for name, parameter in model.named_parameters():
        pointer, value, gradient, required = state[name]
        assert (parameter.data_ptr(), parameter.requires_grad) == (pointer, required)
        assert torch.equal(parameter, value)
        assert torch.equal(parameter.grad, gradient)


async def test_an_update_of_a_shared_module_is_seen_at_once(engine: HFEngine, build_engine: Build) -> None:
    model = build_model("llama")
    await engine.load(0, model)
    before = await greedy(engine)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.tensor([PROMPT * 3]), labels=torch.tensor([PROMPT * 3])).loss.backward()
    optimizer.step()
    await engine.load(1, model)
    after = await greedy(engine)
    assert after.tokens != before.tokens
    copy = build_model("llama")
    copy.load_state_dict(model.state_dict())
    fresh = build_engine()
    await fresh.load(1, copy)
    assert after == await greedy(fresh)


_SMALL = {"vocab_size": 40, "hidden_size": 32, "initializer_range": 0.5}
UNSUPPORTED = {
    "mamba": (lambda: MambaForCausalLM(MambaConfig(**_SMALL, num_hidden_layers=2, state_size=4)), "layers of kind linear_attention"),
    # Its positions are biases made from a plain padding mask.
    "bloom": (lambda: BloomForCausalLM(BloomConfig(**_SMALL, n_head=4, n_layer=2)), "can't run BloomForCausalLM"),
    # Takes the engine's masks and silently computes something else.
    "mpt": (
        lambda: MptForCausalLM(MptConfig(vocab_size=40, d_model=32, n_heads=4, n_layers=2, initializer_range=0.5)),
        "differ from a plain pass",
    ),
}


@pytest.mark.parametrize("architecture", list(UNSUPPORTED))
async def test_architectures_that_the_engine_would_get_wrong_are_refused(engine: HFEngine, architecture: str) -> None:
    build, reason = UNSUPPORTED[architecture]
    torch.manual_seed(0)
    with pytest.raises(ModelError, match=reason):
        await engine.load(2, build().eval())


async def test_positions_that_depend_on_neighbours_are_refused_where_they_would(build_engine: Build) -> None:
    model = build_model("llama")
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model.config = LlamaConfig(**{**model.config.to_dict(), "rope_parameters": rope, "max_position_embeddings": 64})
    await build_engine(max_context=64).load(1, model)
    with pytest.raises(ModelError, match="kind dynamic change with the longest sequence"):
        await build_engine(max_context=65).load(1, model)


def test_looking_engines_up_imports_no_torch() -> None:
    look = "print(engines.names(), engines.configure('hf', {'max_rows': 3}, 'x'))"
    code = f"import sys; from rft_core.engines import engines; {look}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'hf', 'scripted'" in done.stdout
    assert "max_rows=3" in done.stdout
