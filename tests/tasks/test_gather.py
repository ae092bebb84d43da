"""One step at a time beside an explorer that goes on: what is trained, how far behind it may lie, and how the run ends."""

from typing import Any

import pytest

from rft_core.errors import RolloutError
from tests.tasks.runs import Runs

CHECKPOINTS: dict[str, Any] = {"mode": "one_step", "sync": {"method": "checkpoint"}}


def test_every_step_gets_a_whole_batch_and_none_lies_further_behind_than_the_bound(runs: Runs) -> None:
    values = runs.recipe("a.bc..defghijklmnopq", steps=6, **CHECKPOINTS)
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tttttt"
    assert found.metric("batch/num_groups") == [2.0] * 6
    assert max(found.metric("batch/staleness_max")) <= 1
    assert found.fates["trained"] == 12
    assert sum(found.fates.values()) == found.ask("select count(*) as n from leases")[0]["n"]


def test_with_a_bound_of_0_each_group_is_sampled_with_the_version_that_its_step_starts_from(runs: Runs) -> None:
    values = runs.recipe(steps=5, **CHECKPOINTS | {"sync": {"method": "checkpoint", "max_staleness": 0}})
    runs.run(values)
    rows = runs.look(values).ask("select trained_step, policy_version, policy_version_end from experiences join groups using (group_id)")
    trained = [row for row in rows if row["trained_step"] is not None]
    assert len(trained) == 5 * 2 * 2
    assert all(row["policy_version"] == row["policy_version_end"] == row["trained_step"] - 1 for row in trained)


def test_when_the_task_set_is_exhausted_what_is_ready_is_trained_and_the_run_ends(runs: Runs) -> None:
    values = runs.recipe("a.bcd", steps=50, epochs=1, **CHECKPOINTS)
    notes = runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tt"
    assert found.fates == {"dropped": 1, "trained": 4}
    assert notes.steps == [1, 2]


def test_an_explorer_whose_attempts_all_fail_ends_the_run_with_the_reasons(runs: Runs) -> None:
    values = runs.recipe(steps=3, **CHECKPOINTS)
    values["rollout"]["engine"]["args"]["fail"] = ["+"]
    with pytest.raises(RolloutError, match=r"of the last 2 groups 4 of 4 attempts failed: 4 x EngineError: the script says"):
        runs.run(values)


def test_a_condition_that_passes_groups_over_does_not_stop_the_run(runs: Runs) -> None:
    """Of a task whose answers are all wrong no group matches; those that were passed over fill the bound, and become stale."""
    values = runs.recipe("...a....b..c.", steps=5, operators=(), selection={"name": "oldest_first", "where": "reward > 0"}, **CHECKPOINTS)
    runs.run(values)
    found = runs.look(values)
    assert len(found.steps) == 5
    assert found.fates["stale"] > 0
    rewards = found.ask(
        "select max(reward) as best from experiences join groups using (group_id) where trained_step is not null group by group_id"
    )
    assert rewards
    assert all(row["best"] == 1.0 for row in rewards)


def test_where_nothing_matches_at_the_end_of_the_task_set_the_run_ends(runs: Runs) -> None:
    values = runs.recipe("ab..", steps=9, epochs=1, operators=(), selection={"name": "oldest_first", "where": "reward > 0"}, **CHECKPOINTS)
    runs.run(values)
    assert runs.look(values).fates == {"trained": 2, "unused": 2}
