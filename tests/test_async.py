"""A trainer and explorers in processes of their own, which meet only in the table and the weight store."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer import Questions
from rft_core.catalog import Catalog
from rft_core.storage import open_storage
from tests import loop
from tests.tiny_files import recipe


@pytest.fixture
def values(tmp_path: Path, tiny_policy: Path) -> dict[str, Any]:
    return recipe(tmp_path, tiny_policy, mode="async", sync={"method": "checkpoint", "max_staleness": 2}, steps=5, operators=())


def ask(values: dict[str, Any], question: str) -> list[dict[str, Any]]:
    catalog = Catalog(f"sqlite:///{loop.run_dir(values).catalog_file}")
    answer: list[dict[str, Any]] = Questions(open_storage(loop.run_dir(values).root), catalog, None).ask(question).to_pylist()
    catalog.close()
    return answer


def check(values: dict[str, Any]) -> None:
    """Each step once with a whole batch, no group twice, nothing further behind than the bound, one fate for each lease."""
    loop.check_ledger(values)
    bound = values["sync"]["max_staleness"]
    batches = [json.loads(row["groups"]) for row in ask(values, "select groups from claims order by step")]
    assert [len(batch) for batch in batches] == [values["rollout"]["batch_groups"]] * values["steps"]
    assert len({group_id for batch in batches for group_id in batch}) == sum(map(len, batches))
    behind = ask(values, "select max(claimed_step - 1 - lowest_version) as most from groups where claimed_step is not null")
    assert behind[0]["most"] <= bound


def test_two_explorers_and_a_trainer(values: dict[str, Any]) -> None:
    trainer = loop.start(loop.run, values)
    explorers = [loop.start(loop.explore, values, f"explorer-{number}") for number in (1, 2)]
    for child in (trainer, *explorers):
        child.join(90)
        assert child.exitcode == 0
    check(values)
    assert {row["explorer"] for row in ask(values, "select distinct explorer from experiences")} == {"explorer-1", "explorer-2"}


def some(*points: str) -> list[Any]:
    """The first of some points, and the others in the longer tests."""
    return [points[0], *(pytest.param(point, marks=pytest.mark.long) for point in points[1:])]


@pytest.mark.parametrize("point", some("segment.renamed:3", "lease.before:2", "lease.after:2", "segment.intended:2", "segment.committed:2"))
def test_an_explorer_that_is_killed_is_started_again(values: dict[str, Any], point: str) -> None:
    trainer = loop.start(loop.run, values)
    explorer = loop.start(loop.explore, values, "explorer-1", kill_at=point)
    explorer.join(90)
    assert explorer.exitcode == -signal.SIGKILL
    for child in (loop.start(loop.explore, values, "explorer-1"), trainer):
        child.join(90)
        assert child.exitcode == 0
    check(values)


@pytest.mark.parametrize(
    "point",
    some(
        "publish.renamed:2",
        "claim.before:2",
        "claim.after:2",
        "train.after:2",
        "checkpoint.written:1",
        "checkpoint.renamed:1",
        "publish.after:2",
        "step.before:3",
        "step.after:3",
        "evaluation.written",
        "evaluation.after",
        "monitor.exported",
    ),
)
def test_a_trainer_that_is_killed_is_started_again_beside_explorers_that_go_on(values: dict[str, Any], point: str) -> None:
    trainer = loop.start(loop.run, values, kill_at=point)
    explorer = loop.start(loop.explore, values, "explorer-1")
    trainer.join(90)
    assert trainer.exitcode == -signal.SIGKILL
    for child in (loop.start(loop.run, values), explorer):
        child.join(90)
        assert child.exitcode == 0
    check(values)
