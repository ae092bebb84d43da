"""Opening an explorer in a process of its own, on a run that a trainer has begun."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from rft_core import plan
from rft_core.base_model import locate
from rft_core.buffer import open_known
from rft_core.catalog import LEASE_S, Catalog, heartbeat
from rft_core.config import RunConfig
from rft_core.operators.apply import pipeline_version
from rft_core.processes import this_process
from rft_core.run_dir import RunDir
from rft_core.trainer.convert import materialise
from tasks.explore import Exploration
from tasks.opening import build_explorer
from tasks.progress import watcher


@asynccontextmanager
async def explorer_opened(config: RunConfig, name: str) -> AsyncIterator[Exploration]:
    """Open an explorer on a run, for as long as the block lasts.

    Args:
        config: The run's recipe, as this explorer follows it.
        name: By which it is known in the table; no two explorers at work have the same.

    Raises:
        RunError: The run has not begun, has another task set, or an explorer of this name is at work.
        UserError: Something that the recipe names can't be used.
    """
    run_dir = RunDir(Path(config.runs_dir) / config.name)
    async with AsyncExitStack() as parts:
        table = open_known(run_dir, config, pipeline_version(config.operators), name)
        catalog = table.catalog
        parts.callback(catalog.close)
        catalog.versions.enter(name, this_process())
        parts.callback(catalog.versions.release, name)
        catalog.leases.take_back(name, "the process that held it ended")
        table.store.sweep()
        parts.enter_context(heartbeat(partial(_beat, catalog, name), LEASE_S / 4))
        watcher().note(f"{name}: loading {config.model.path}")
        computer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sample")
        parts.callback(computer.shutdown)
        loop = asyncio.get_running_loop()
        base_folder = await loop.run_in_executor(computer, materialise, locate(config.model.path))
        tasks = await loop.run_in_executor(computer, plan.open_train, config)
        catalog.leases.bind(tasks.fingerprint)
        explorer = build_explorer(name, config, base_folder, table.store, computer)
        parts.push_async_callback(explorer.scorers.close)
        parts.push_async_callback(explorer.engine.close)
        parts.callback(catalog.leases.take_back, name, "its explorer left")
        yield Exploration(config, run_dir, catalog, explorer, base_folder, tasks, name)


def _beat(catalog: Catalog, name: str) -> None:
    """Keep alive what this explorer holds: its leases, and the version that it uses."""
    catalog.leases.renew(name)
    catalog.versions.seen(name)
