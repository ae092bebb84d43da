"""Engines over tiny random models."""

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from rft_core.engines.hf import HFConfig, HFEngine
from rft_core.tokens import Tokenizer
from tests.engines.models import write_tokenizer


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    return Tokenizer(write_tokenizer(folder))


@pytest.fixture
async def build_engine(tokenizer: Tokenizer) -> AsyncIterator[Callable[..., HFEngine]]:
    """`build_engine(max_context=..., dtype=..., tokenizer=..., **arguments of HFConfig)`; each has its own thread."""
    made: list[tuple[HFEngine, ThreadPoolExecutor]] = []
    own = tokenizer

    def build(*, max_context: int = 64, dtype: str = "float32", tokenizer: Tokenizer | None = None, **args: Any) -> HFEngine:
        compute = ThreadPoolExecutor(1, thread_name_prefix="compute")
        compute.submit(torch.set_num_threads, 1).result()
        engine = HFEngine(HFConfig(**args), tokenizer=tokenizer or own, max_context=max_context, dtype=dtype, compute=compute)
        made.append((engine, compute))
        return engine

    yield build
    for engine, compute in made:
        await engine.close()
        compute.shutdown()
