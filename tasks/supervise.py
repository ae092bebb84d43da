"""Supervise: run the trainer and the explorers of an async run as children of this process."""

import asyncio
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from rft_core.children.records import reap
from rft_core.children.supervisor import Child, Limits, Supervisor
from rft_core.config import RunConfig, dump
from rft_core.disk import make_folder, write_whole
from rft_core.run_dir import RunDir
from tasks.beside import alongside
from tasks.progress import Progress, watcher

TRAINER = "trainer"
LIMITS = Limits(restarts=3, within_s=600.0, backoff_s=1.0, grace_s=8.0)
"""A child that fails for the fourth time within ten minutes fails the run; one that is asked to stop has eight seconds."""
RFT = (sys.executable, "-m", "flows.cli")
_POLL_S = 0.2


async def supervised(config: RunConfig, environment: Mapping[str, str], program: tuple[str, ...] = RFT) -> dict[str, Any]:
    """Run a recipe of mode `async` to its end: one trainer, and the explorers that it names. Whatever ends this leaves no child behind.

    Args:
        config: The recipe.
        environment: What children have beside this process's environment.
        program: What runs them, as `rft` does: its commands `train` and `explore`.

    Returns:
        The run's summary.

    Raises:
        ChildError: A child failed too often; says how it ended and what it said last.
    """
    run_dir, progress = RunDir(Path(config.runs_dir) / config.name), watcher()
    run_dir.create()
    folder = run_dir.children
    for name in reap(folder):
        progress.note(f"ended {name}, which a killed process had left")
    make_folder(folder)
    recipe = folder / "recipe.yaml"
    write_whole(recipe, dump(config))
    trainer = Child(TRAINER, [*program, "train", str(recipe), "--json"], environment)
    explorers = [Child(name, [*program, *command], environment) for name, command in _explorers(config, run_dir, recipe)]
    supervisor = Supervisor(folder, LIMITS, progress.note)
    async with alongside(_relay(folder / f"{TRAINER}.log", progress)):
        await supervisor.run([trainer, *explorers], done_when=TRAINER)
    summary: dict[str, Any] = json.loads(run_dir.summary_file.read_text())
    return summary


def _explorers(config: RunConfig, run_dir: RunDir, recipe: Path) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each explorer that a recipe wants."""
    number = 0
    for kind in config.explorers:
        changes = [
            part
            for key, value in kind.rollout.items()
            for part in ("--set", f"rollout.{key}={yaml.safe_dump(value, default_flow_style=True)}")
        ]
        for _ in range(kind.count):
            number += 1
            name = f"explorer-{number}"
            yield name, ["explore", str(run_dir.root), "--name", name, "--after", str(recipe), *changes]


async def _relay(log: Path, progress: Progress) -> None:
    """Pass on what the trainer tells, which it writes to its log as lines of JSON."""
    at = len(await asyncio.to_thread(_read_from, log, 0))  # what earlier processes wrote
    while True:
        written = await asyncio.to_thread(_read_from, log, at)
        *lines, rest = written.split(b"\n")
        at += len(written) - len(rest)
        for line in lines:
            _tell(line, progress)
        await asyncio.sleep(_POLL_S)


def _read_from(file: Path, at: int) -> bytes:
    if not file.exists():
        return b""
    with file.open("rb") as opened:
        opened.seek(at)
        return opened.read()


def _tell(line: bytes, progress: Progress) -> None:
    try:
        said = json.loads(line)
        event = said["event"]
    except (ValueError, TypeError, KeyError):  # what libraries write there
        return
    if event == "begin":
        progress.begin(said["run"], said["done"], said["last"])
    elif event == "stage":
        progress.stage(said["step"], said["stage"])
    elif event == "step":
        progress.step(said["step"], said["last"], said["metrics"])
    elif event == "note":
        progress.note(said["text"])
