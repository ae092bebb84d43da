"""Bench: score published versions on the held-out tasks, beside or after a run."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rft_core.base_model import locate
from rft_core.buffer import open_known
from rft_core.catalog import Catalog
from rft_core.config import RunConfig, read_recipe
from rft_core.engines import Engine
from rft_core.errors import UserError
from rft_core.explorer import Explorer
from rft_core.operators.apply import pipeline_version
from rft_core.plan import open_held_out
from rft_core.processes import this_process
from rft_core.run_dir import RunDir
from rft_core.taskset import TaskSet
from rft_core.trainer.convert import materialise
from rft_core.weights import fetch
from tasks.evaluate import held_out_tasks, score, summary_of
from tasks.opening import build_explorer


@dataclass(frozen=True, slots=True)
class Bench:
    """What scoring needs of a run: it reads its weights and writes nothing into its table."""

    config: RunConfig
    run_dir: RunDir
    catalog: Catalog
    base_folder: Path
    engine: Engine
    explorer: Explorer
    held_out: TaskSet


_open: dict[str, Bench] = {}


@asynccontextmanager
async def bench_opened(root: str) -> AsyncIterator[Bench]:
    """Open a run for scoring; it may go on meanwhile.

    Raises:
        UserError: Its recipe names no held-out tasks.
    """
    run_dir = RunDir(Path(root))
    config = read_recipe(run_dir.recipe_file)
    held_out = open_held_out(config)
    if held_out is None:
        raise UserError(f"the recipe of {root} names no held-out tasks", "set data.evaluation")
    async with AsyncExitStack() as parts:
        computer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")
        parts.callback(computer.shutdown)
        folder = await asyncio.get_running_loop().run_in_executor(computer, materialise, locate(config.model.path))
        table = open_known(run_dir, config, pipeline_version(config.operators), reader())
        catalog = table.catalog
        parts.callback(catalog.close)
        explorer = build_explorer(reader(), config, folder, table.store, computer)
        parts.push_async_callback(explorer.scorers.close)
        parts.push_async_callback(explorer.engine.close)
        parts.callback(catalog.versions.release, reader())
        _open[root] = Bench(config, run_dir, catalog, folder, explorer.engine, explorer, held_out)
        parts.callback(_open.pop, root)
        yield _open[root]


def reader() -> str:
    """This process as a reader of weights."""
    return f"bench in {this_process().name}"


@task(task_run_name="bench-{version}", cache_policy=NO_CACHE)
async def score_version(root: str, version: int) -> dict[str, Any]:
    """Score one version; 0 is the base model."""
    bench = _open[root]
    bench.catalog.versions.acknowledge(reader(), version)  # first, so that a run that goes on does not collect it meanwhile
    folder = fetch(bench.run_dir, bench.catalog.versions.find(version), version) if version else bench.base_folder
    await bench.engine.load(version, folder)
    answers = await score(bench.explorer, held_out_tasks(bench.held_out, bench.config), bench.config)
    return {"version": version, **{name.removeprefix("evaluation/"): value for name, value in summary_of(answers).items()}}
