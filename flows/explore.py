"""The flow of one explorer: any number of them may join a run that a trainer works on, and leave it, at any time."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from prefect import flow

from rft_core.config import read_recipe
from rft_core.errors import RunError
from rft_core.plan import with_changes
from rft_core.run_dir import RunDir
from tasks.exploring import explorer_opened

POLL_S = 0.2
"""How often it is looked whether the trainer has begun."""


@flow(name="explore", flow_run_name="explore-{run}", persist_result=False)
async def explore(run: str, name: str | None = None, rollout: dict[str, Any] | None = None) -> int:
    """Try tasks for a run until its last step is done; returns how many groups that were.

    Args:
        run: Path of the run's folder.
        name: By which the explorer is known in the table; made of machine and process if left out.
        rollout: Other values for keys of the recipe's section `rollout`: this explorer's engine, environment, temperature and the like.
    """
    return await explore_run(run, name, rollout)


async def explore_run(run: str, name: str | None = None, rollout: dict[str, Any] | None = None) -> int:
    """See `explore`."""
    run_dir = RunDir(Path(run))
    if not run_dir.recipe_file.exists():
        raise RunError(f"{run_dir.root} has not begun", "start its trainer first: `rft run RECIPE` or `rft train RECIPE`")
    config = read_recipe(run_dir.recipe_file)
    if config.mode != "async":
        raise RunError(f"{run_dir.root} is in mode {config.mode}, which explores by itself", "set `mode: async` to have explorers join")
    here = config.model_copy(update={"runs_dir": str(run_dir.root.parent), "name": run_dir.name})
    async with explorer_opened(with_changes(here, rollout or {}), name or default_name()) as exploration:
        return await exploration.go_on()


def wait_until_begun(run: str, recipe: Path) -> None:
    """Wait until a trainer has opened a run with a recipe."""
    file = RunDir(Path(run)).recipe_file
    while not file.exists() or file.read_bytes() != recipe.read_bytes():
        time.sleep(POLL_S)


def default_name() -> str:
    """A name that no other explorer has."""
    return f"explorer-{socket.gethostname()}-{os.getpid()}"
