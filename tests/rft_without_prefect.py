"""`rft train` and `rft explore` without Prefect: what supervised runs are tested with, in a fifth of the time."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml

from flows.explore import explore_run, wait_until_begun
from flows.rft import run_recipe
from flows.terminal import watcher
from rft_core.config import read_recipe
from rft_core.errors import TidemillError
from tasks.progress import watched_by
from tests import explorer_parts, loop

assert explorer_parts.MOODY  # imported for the environments that it registers
app = typer.Typer()


@app.command()
def train(recipe: Path, as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    with watcher(as_json) as progress, watched_by(progress):
        asyncio.run(run_recipe(read_recipe(recipe), loop.STAGES))


@app.command()
def explore(
    run: str,
    name: Annotated[str, typer.Option()],
    after: Annotated[Path, typer.Option()],
    changes: Annotated[list[str] | None, typer.Option("--set")] = None,
) -> None:
    parts = [change.partition("=") for change in changes or ()]
    changed = {key.removeprefix("rollout."): yaml.safe_load(value) for key, _, value in parts}
    wait_until_begun(run, after)
    asyncio.run(explore_run(run, name, changed))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    try:
        app()
    except TidemillError as error:
        print(f"rft: {error}", file=sys.stderr)
        raise SystemExit(1) from None
