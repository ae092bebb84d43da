"""The loop of `flows/rft.py` with the functions inside its Prefect tasks: the same steps, no server."""

import asyncio
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tasks
from flows.explore import explore_run
from flows.rft import run_recipe
from rft_core.catalog import Catalog
from rft_core.config import parse
from rft_core.disk import file_sha256
from rft_core.run_dir import RunDir
from tasks.report import step_row, tell
from tasks.session import get

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.loop", "tasks.opening", "rft_core.monitor.mlflow", "mlflow.store.tracking.sqlalchemy_store"])


async def _report(run: str, step: int) -> None:
    session = get(run)
    await tell(session, step_row(session, step))


STAGES = SimpleNamespace(**{name: getattr(tasks, name).fn for name in tasks.__all__})
STAGES.report = _report


def run(values: dict[str, Any]) -> dict[str, Any]:
    """Run a recipe in this process."""
    return asyncio.run(run_recipe(parse(values), STAGES))


def _child(values: dict[str, Any], kill_at: str | None, environment: dict[str, str]) -> None:
    import torch

    os.setsid()
    torch.set_num_threads(1)
    os.environ.update(environment)
    if kill_at:
        os.environ["TIDEMILL_KILL_AT"] = kill_at
    run(values)


def explore(values: dict[str, Any], name: str, changes: dict[str, Any] | None = None) -> int:
    """Explore in this process for a run that a trainer works on, as soon as it has begun."""
    while not run_dir(values).recipe_file.exists():
        time.sleep(0.05)
    return asyncio.run(explore_run(str(run_dir(values).root), name, changes))


def start(function: Callable[..., Any], *args: Any, kill_at: str | None = None) -> Any:
    """Start `run` or `explore` in a process of its own, which perhaps kills itself."""
    child = FORK.Process(target=_started, args=(function.__name__, args, kill_at))
    child.start()
    return child


def _started(function: str, args: tuple[Any, ...], kill_at: str | None) -> None:
    import torch

    os.setsid()
    torch.set_num_threads(1)
    if kill_at:
        os.environ["TIDEMILL_KILL_AT"] = kill_at
    {"run": run, "explore": explore}[function](*args)


def run_in_child(
    values: dict[str, Any], kill_at: str | None = None, kill_after_s: float | None = None, environment: dict[str, str] | None = None
) -> int:
    """Run a recipe in a process of its own, and perhaps kill it. Returns its exit code: 0, or -9 if it was killed."""
    child = FORK.Process(target=_child, args=(values, kill_at, environment or {}))
    child.start()
    assert child.pid is not None
    child.join(kill_after_s if kill_after_s is not None else 120)
    if child.exitcode is None:
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert kill_after_s is not None, "the run hung"
    assert child.exitcode is not None
    return child.exitcode


def run_dir(values: dict[str, Any]) -> RunDir:
    return RunDir(Path(values["runs_dir"]) / values["name"])


def final_weights(values: dict[str, Any]) -> str:
    """SHA-256 of the last step's weights."""
    return file_sha256(run_dir(values).version(values["steps"]) / "model.safetensors")


def check_ledger(values: dict[str, Any]) -> None:
    """Each step once, one fate for each lease, and nothing left in flight."""
    catalog = Catalog(f"sqlite:///{run_dir(values).catalog_file}")
    assert [row.step for row in catalog.claims.steps()] == list(range(1, values["steps"] + 1))
    fates = catalog.leases.fates()
    assert sum(fates.values()) == catalog.leases.num_issued()
    assert not {"in_flight", "ready", "pending"} & set(fates)
    columns, rows = catalog.relation("segments")
    stored = {row[list(columns).index("uri")] for row in rows}
    on_disk = {f"segments/{path.name}" for path in (run_dir(values).root / "segments").iterdir()}
    assert on_disk == stored
    catalog.close()


def check_mlflow(values: dict[str, Any]) -> None:
    """One MLflow run, with each step's metrics once."""
    with sqlite3.connect(Path(values["runs_dir"]) / "mlflow.db") as store:
        run_id = run_dir(values).run_id
        runs = store.execute("select run_uuid from tags where key = 'tidemill.run_id' and value = ?", (run_id,)).fetchall()
        assert len(runs) == 1
        logged = store.execute("select key, step from metrics where run_uuid = ?", runs[0]).fetchall()
    assert max(Counter(logged).values()) == 1
    assert {step for key, step in logged if key == "rollout/reward_mean"} == set(range(1, values["steps"] + 1))


def summary(values: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run_dir(values).summary_file.read_text())
    return content
