"""A policy that was taught nothing: what it would say does not matter where a script says it."""

from pathlib import Path
from typing import Any

import pytest

from tests.tasks.runs import InProcess, Runs


@pytest.fixture(scope="session")
def blank_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    from tests import tiny

    torch.set_num_threads(1)
    return tiny.write_policy(tmp_path_factory.mktemp("blank") / "policy", steps=0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, blank_policy: Path) -> dict[str, Any]:
    """The recipe of a finished run of two steps, each with a checkpoint and files; copy it, never change it."""
    runs = Runs(tmp_path_factory.mktemp("finished"), blank_policy)
    values = runs.recipe("abcdef", steps=2, sync__method="checkpoint", checkpoint__every=1)
    runs.run(values)
    return values


@pytest.fixture
def scored_runs(tmp_path: Path, blank_policy: Path) -> Runs:
    """Recipes over the blank policy and a script; each is run in this process, with scorers in others."""
    return Runs(tmp_path, blank_policy)


@pytest.fixture
def runs(scored_runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The same with scorers in this process too: those are not what these tests are about."""
    monkeypatch.setattr("tasks.opening.open_scorers", InProcess)
    return scored_runs
