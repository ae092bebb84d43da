"""A supervised run: its processes are started, started again, and never left behind."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rft_core.config import parse
from rft_core.errors import ChildError
from tasks import supervise
from tasks.progress import watched_by
from tasks.supervise import supervised
from tests import loop
from tests.tasks.runs import Notes
from tests.test_async import ask, check
from tests.tiny_files import recipe

PROGRAM = (sys.executable, "-m", "tests.rft_without_prefect")


@pytest.fixture
def values(tmp_path: Path, tiny_policy: Path) -> dict[str, Any]:
    return recipe(
        tmp_path,
        tiny_policy,
        mode="async",
        sync={"method": "checkpoint", "max_staleness": 2},
        steps=8,
        operators=(),
        explorers=[{}, {"rollout": {"temperature": 0.5}}],
    )


def run(values: dict[str, Any], meanwhile: Any = None) -> Notes:
    async def both() -> None:
        watching = asyncio.create_task(asyncio.to_thread(meanwhile)) if meanwhile else None
        await supervised(parse(values), {}, PROGRAM)
        if watching is not None:
            await watching

    heard = Notes()
    with watched_by(heard):
        asyncio.run(both())
    return heard


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]


def kill(values: dict[str, Any], name: str) -> None:
    """Kill a child as soon as it has started and the run has begun."""
    record = loop.run_dir(values).children / f"{name}.json"
    while not record.exists() or not loop.run_dir(values).recipe_file.exists():
        time.sleep(0.05)
    os.kill(int(json.loads(record.read_text())["child"].split("|")[-2]), signal.SIGKILL)


@pytest.mark.parametrize("name", ["explorer-1", pytest.param("trainer", marks=pytest.mark.long)])
def test_a_run_is_made_by_its_children_and_one_that_is_killed_is_started_again(values: dict[str, Any], name: str) -> None:
    before = set(children())
    heard = run(values, lambda: kill(values, name))
    assert heard.steps[-1] == values["steps"]
    assert "trainer ended" in heard.notes
    assert any(note.startswith(f"{name} was ended by SIGKILL; restart 1 of 3") for note in heard.notes)
    check(values)
    explored = ask(values, "select distinct explorer, temperature from experiences order by 1")
    assert [(row["explorer"], row["temperature"]) for row in explored if row["explorer"] == "explorer-2"] == [("explorer-2", 0.5)]
    assert set(children()) <= before


@pytest.mark.long
def test_an_explorer_that_always_fails_fails_the_run_and_the_run_goes_on_later(
    values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "LIMITS", supervise.Limits(restarts=1, within_s=600.0, backoff_s=0.1, grace_s=4.0))
    broken = values | {"explorers": [{"rollout": {"engine": {"name": "scripted", "args": {"fail": ["+"]}}}}]}
    with pytest.raises(ChildError, match=r"explorer-1 ended with exit code 1 after 1 restart within 600 s: rft: of the last 4 groups "):
        run(broken)
    assert [one for one in children() if "tests.rft_without_prefect" in one.cmdline()] == []
    run(values)
    check(values)
