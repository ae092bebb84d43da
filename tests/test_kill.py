"""SIGKILL at every named point and at random moments: the same command again ends with the same weights, bit for bit."""

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from rft_core.failpoints import LOOP
from tests import loop
from tests.tiny_files import recipe

STEPS = 4


@pytest.fixture(scope="module")
def unharmed(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """Final weights of the run that is never killed, and how long it takes."""
    values = recipe(tmp_path_factory.mktemp("unharmed"), tiny_policy, steps=STEPS, evaluation__every=2)
    began = time.monotonic()
    assert loop.run_in_child(values) == 0
    loop.check_ledger(values)
    return loop.final_weights(values), time.monotonic() - began


@pytest.fixture
def values(tmp_path: Path, tiny_policy: Path, empty_mlflow_store: Path) -> dict[str, Any]:
    """The same recipe, reviewed in a real MLflow store."""
    changed = recipe(tmp_path, tiny_policy, steps=STEPS, evaluation__every=2, monitor__name="mlflow")
    (tmp_path / "runs").mkdir()
    shutil.copyfile(empty_mlflow_store, tmp_path / "runs" / "mlflow.db")
    return changed


def check(values: dict[str, Any], weights: str) -> None:
    assert loop.final_weights(values) == weights
    loop.check_ledger(values)
    loop.check_mlflow(values)
    assert loop.summary(values)["status"] == "completed"


@pytest.mark.parametrize("point", LOOP)
def test_killed_at_a_named_point(point: str, values: dict[str, Any], unharmed: tuple[str, float]) -> None:
    # The second passage: something was committed before, and for most points there is no checkpoint yet.
    assert loop.run_in_child(values, kill_at=f"{point}:2") == -9
    assert loop.run_in_child(values) == 0
    check(values, unharmed[0])


def kill_at_random(values: dict[str, Any], unharmed: tuple[str, float], seed: int) -> None:
    rng = random.Random(seed)
    weights, duration_s = unharmed
    while loop.run_in_child(values, kill_after_s=rng.uniform(0.1, 0.9) * duration_s) != 0:
        if rng.random() < 0.5:  # killed once, or more often
            assert loop.run_in_child(values) == 0
            break
    check(values, weights)


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_moments(seed: int, values: dict[str, Any], unharmed: tuple[str, float]) -> None:
    kill_at_random(values, unharmed, seed)


@pytest.mark.long
@pytest.mark.parametrize(
    "point", ["segment.renamed", "claim.after", "checkpoint.renamed", "publish.renamed", "publish.after", "step.after"]
)
def test_killed_with_published_files_every_second_step(point: str, values: dict[str, Any], tmp_path: Path, tiny_policy: Path) -> None:
    apart = {"sync": {"method": "checkpoint", "interval": 2}, "checkpoint": {"every": 3}}
    reference = recipe(tmp_path / "unharmed", tiny_policy, steps=6) | apart
    assert loop.run_in_child(reference) == 0
    values |= apart | {"steps": 6}
    assert loop.run_in_child(values, kill_at=f"{point}:{3 if point in ('segment.renamed', 'claim.after', 'step.after') else 1}") == -9
    assert loop.run_in_child(values) == 0
    check(values, loop.final_weights(reference))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4, 24))
def test_killed_at_more_random_moments(seed: int, values: dict[str, Any], unharmed: tuple[str, float]) -> None:
    kill_at_random(values, unharmed, seed)
