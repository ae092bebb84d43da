"""An attempt's deadline counts what the attempt does, not what it waits for."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from rft_core.engines.scripted import ScriptedConfig, ScriptedEngine
from rft_core.environments.single_turn import SingleTurn
from rft_core.explorer import Explorer, Sampling, Unscored
from rft_core.registry import ExtensionConfig
from rft_core.tokens import Tokenizer
from rft_core.types import Completion, GenerationRequest, Message, Task

TASK = Task("t", (Message("text", "1+1="),))


class BusyEngine(ScriptedEngine):
    """Begins with a request after a while, and then takes some time for it."""

    queue_s = 0.0
    work_s = 0.0

    async def generate(self, request: GenerationRequest, on_start: Callable[[], None] = lambda: None) -> Completion:
        await asyncio.sleep(self.queue_s)
        on_start()
        await asyncio.sleep(self.work_s)
        return await super().generate(request)


async def error_of(shape: Path, queue_s: float, work_s: float) -> str | None:
    tokenizer = Tokenizer(shape)
    engine = BusyEngine(ScriptedConfig(default=("2",)), tokenizer=tokenizer, max_context=32, dtype="float32", compute=None)
    engine.queue_s, engine.work_s = queue_s, work_s
    explorer = Explorer(
        name="e",
        seed=0,
        engine=engine,
        tokenizer=tokenizer,
        max_context=32,
        environment=lambda: SingleTurn(ExtensionConfig()),
        held_out_environment=lambda: SingleTurn(ExtensionConfig()),
        scorers=Unscored(),
        store=None,
    )
    (finished,) = await explorer.answer([TASK], Sampling(temperature=1.0, max_tokens=2, timeout_s=0.4))
    return finished.error


async def test_waiting_behind_others_in_the_engine_does_not_count(tiny_shape: Path) -> None:
    assert await error_of(tiny_shape, queue_s=1.0, work_s=0.0) is None


async def test_what_the_engine_does_for_it_counts(tiny_shape: Path) -> None:
    error = await error_of(tiny_shape, queue_s=0.0, work_s=5.0)
    assert error is not None
    assert error.startswith("DeadlineError: the attempt took longer than 0.4 s")
