"""Extensions of Tidemill that recipes of the simulation name: an engine that takes as long as the load says, and an algorithm that asks
for no rewards, whose scorers would work in processes that know nothing of virtual time."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.simulation.load import Load
from rft_core.algorithms import Needs, algorithms
from rft_core.engines import engines
from rft_core.registry import ExtensionConfig
from rft_core.tokens import Tokenizer
from rft_core.types import Completion, GenerationRequest, StopReason

ENGINE = "benchmarks.simulation.parts:SimulatedEngine"
ALGORITHM = "benchmarks.simulation.parts:Unrewarded"


class SimulatedConfig(ExtensionConfig):
    """The load."""

    load: dict[str, Any]


@engines.register("simulated", config=SimulatedConfig)
class SimulatedEngine:
    """Answers with nothing, after as long as the task's position says. Prompts are positions."""

    def __init__(self, config: SimulatedConfig, *, tokenizer: Tokenizer, max_context: int, dtype: str, compute: Executor) -> None:
        self._load = Load(**config.load)
        self._tokenizer = tokenizer
        self.version = 0

    async def generate(self, request: GenerationRequest, on_start: Callable[[], None] = lambda: None) -> Completion:
        on_start()
        version = self.version
        latency = self._load.latency(int(self._tokenizer.decode(request.prompt_tokens)))
        if latency is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(latency)
        return Completion((self._tokenizer.eos_id,), (0.0,), StopReason.EOS, version, self.version)

    async def score(self, tokens: Sequence[int]) -> tuple[float, ...]:
        return (0.0,) * (len(tokens) - 1)

    async def load(self, version: int, source: Path | Any) -> None:
        self.version = version

    def expect(self, waiting: Callable[[], int]) -> None:
        """Answers don't depend on a batch."""

    async def close(self) -> None:
        """Nothing to free."""


@algorithms.register("unrewarded")
class Unrewarded:
    """Learns nothing: the simulation's training only takes time."""

    needs = Needs(rewards=False)

    def __init__(self, config: ExtensionConfig) -> None: ...

    def advantages(self, rewards_G: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.zeros_like(rewards_G)

    def loss(self, inputs: Any) -> Any:
        raise NotImplementedError("the simulation never asks for a loss")


def engine_of(load: Load) -> dict[str, Any]:
    """The engine of a load, as a recipe names it."""
    return {"name": ENGINE, "args": {"load": asdict(load)}}
