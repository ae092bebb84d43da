"""Selections and late labels within the loop: what a step trains on, and what a killed run is handed again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer.labelling import apply_labels
from rft_core.buffer.labels import read_labels
from rft_core.buffer.opening import open_table
from rft_core.config import parse
from rft_core.errors import TrainingError
from tests import loop
from tests.tasks.runs import Look, Runs
from tests.tiny_files import recipe

REPLAY = {"selection": {"name": "priority", "args": {"by": "recency", "max_uses": 2, "decay": 0.5}}, "sync__max_staleness": 4}
SILENT = {"name": "tests.tasks.test_selection:silent"}


def silent(task: object, answer: str) -> float | None:
    """Leaves every reward to people."""
    return None


def batches(found: Look) -> list[tuple[str, ...]]:
    return [claim.group_ids for claim in found.claims.values() if claim is not None]


def test_replay_trains_groups_again_within_their_uses_and_their_staleness(runs: Runs) -> None:
    # Every second step has nothing new to teach, so older groups are taken again.
    values = runs.recipe("ab..cd..ef..", steps=6, **REPLAY)
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tttttt"
    taken = Counter(group for batch in batches(found) for group in batch)
    assert max(taken.values()) == 2
    assert batches(found)[1] == batches(found)[0]
    assert found.metric("batch/staleness_max") == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    trained = found.ask("select group_id, trained_step, uses from groups where status = 'trained'")
    first = {group: step for step, batch in reversed(list(enumerate(batches(found), start=1))) for group in batch}
    assert {row["group_id"]: row["trained_step"] for row in trained} == first, "its fate is the step that trained it first"
    assert {row["uses"] for row in trained} == {2}
    assert found.fates == {"dropped": 6, "trained": 6}


def test_a_killed_replay_is_handed_the_same_batches(tmp_path: Path, tiny_policy: Path) -> None:
    changes = {"steps": 6, "evaluation__num_tasks": 1, **REPLAY, "selection": {"name": "priority", "args": {"max_uses": 3, "cool_down": 1}}}
    unharmed, killed = (recipe(tmp_path / name, tiny_policy, **changes) for name in ("unharmed", "killed"))
    assert loop.run_in_child(unharmed) == 0
    assert loop.run_in_child(killed, kill_at="claim.after:4") == -9
    assert loop.run_in_child(killed) == 0
    assert batches(Look(killed)) == batches(Look(unharmed))
    assert loop.final_weights(killed) == loop.final_weights(unharmed)


def test_a_condition_decides_what_is_trained_and_the_rest_is_counted(runs: Runs) -> None:
    values = runs.recipe("abcd", steps=2, selection={"where": "slot = 1 and reward > 0"})
    runs.run(values)
    found = runs.look(values)
    assert found.metric("batch/num_groups") == [1.0, 1.0]
    assert found.metric("batch/left_out") == [1.0, 2.0], "what was left out of the first step has become stale"
    assert found.fates == {"stale": 1, "trained": 2, "unused": 1}
    assert found.ask("select left_out from claims order by step") == [
        {"left_out": '{"where": 1}'},
        {"left_out": '{"where": 1, "stale": 1}'},
    ]


def test_a_condition_that_selects_nothing_ends_the_run_with_a_reason(runs: Runs) -> None:
    values = runs.recipe("abcd", steps=2, selection={"where": "reward > 5"})
    with pytest.raises(TrainingError, match="none of the 2 steps had anything to learn from"):
        runs.run(values)
    assert runs.look(values).fates == {"stale": 2, "unused": 2}


@pytest.mark.parametrize("operators", [[], [{"name": "drop_no_signal"}]], ids=["raw", "shaped"])
def test_labels_that_come_while_a_run_goes_on_are_trained(operators: list[dict[str, str]], runs: Runs) -> None:
    late: dict[str, Any] = {"sync__max_staleness": 4, "rollout__short_batch": "skip", "rewards": [SILENT], "operators": operators}
    values = runs.recipe("abcdefgh", steps=1, **late)
    with pytest.raises(TrainingError):
        runs.run(values)
    assert runs.look(values).fates == {"unused": 2}, "nobody labelled them before the run ended"

    values = runs.recipe("abcdefgh", name="labelled", steps=2, checkpoint__every=1, **late)

    def label_all(step: int) -> None:
        if step == 1:
            label(values, runs.folder / "labels.jsonl")

    with pytest.MonkeyPatch.context() as patch:
        after_each_step(patch, label_all)
        runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "st"
    assert batches(found)[1] == tuple(row["group_id"] for row in found.ask("select group_id from groups where step = 1 order by slot"))
    assert found.fates == {"trained": 2, "unused": 2}
    rewards = found.ask("select reward, labelled_reward, final_reward from attempts where step = 1 order by slot, attempt")
    assert [row["final_reward"] for row in rewards] == [1.0, 0.0, 1.0, 0.0]
    assert {row["reward"] for row in rewards} == {None}


def label(values: dict[str, Any], path: Path) -> None:
    """A person labels every attempt that waits for it: the first of each group was right."""
    waiting = Look(values).ask("select experience_id, attempt from experiences where fate = 'pending' order by slot, attempt")
    lines = [f'{{"experience_id": "{row["experience_id"]}", "value": {1 - row["attempt"]}, "author": "ada"}}' for row in waiting]
    path.write_text("\n".join(lines) + "\n")
    config = parse(values)
    table = open_table(loop.run_dir(values), config, "any" if config.operators else None, "labels")
    assert len(apply_labels(table, read_labels(path)).applied.completed) == len({row["experience_id"] for row in waiting}) // 2
    table.catalog.close()


def after_each_step(patch: pytest.MonkeyPatch, then: Callable[[int], None]) -> None:
    """Call something when a step of a run is done, before the next one begins."""
    sync = loop.STAGES.sync

    async def synced(run: str, step: int) -> None:
        await sync(run, step)
        then(step)

    patch.setattr(loop.STAGES, "sync", synced)
