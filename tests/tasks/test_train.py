"""A step is claimed once and trained once; one without anything to learn from moves nothing."""

from pathlib import Path
from typing import Any

from rft_core.config import parse
from rft_core.trainer.trainer import learning_rate_at
from tests.tasks.runs import Runs


def test_a_skipped_step_moves_neither_weights_nor_schedule(runs: Runs) -> None:
    schedule: dict[str, Any] = {"trainer__schedule": "linear", "trainer__warmup_steps": 1, "trainer__learning_rate": 1e-3}
    values = runs.recipe("ab..cd", steps=3, sync__method="checkpoint", sync__keep=9, **schedule)
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tst"
    assert [row.version for row in found.steps] == [1, 2, 3]
    assert found.weights(1) == found.weights(2) != found.weights(3)
    trainer = parse(values).trainer
    assert found.metric("trainer/learning_rate") == [learning_rate_at(trainer, 0, 3), None, learning_rate_at(trainer, 1, 3)]
    assert found.metric("trainer/num_updates") == [1.0, 0.0, 1.0]


def test_the_claim_of_a_step_names_its_batch_and_its_snapshot(runs: Runs) -> None:
    values = runs.recipe("ab..cd", steps=3)
    runs.run(values)
    found = runs.look(values)
    trained = {
        row["group_id"]: row["trained_step"] for row in found.ask("select group_id, trained_step from groups where status = 'trained'")
    }
    for step, claim in found.claims.items():
        assert claim is not None
        assert sorted(claim.group_ids) == sorted(group for group, at in trained.items() if at == step)
    # One segment and one overlay a step, numbered in commit order from one counter.
    assert [claim.snapshot["sequence"] for claim in found.claims.values() if claim is not None] == [2, 4, 6]


def test_groups_that_no_operator_dropped_but_teach_nothing_are_dropped_with_a_reason(runs: Runs) -> None:
    values = runs.recipe("a.bc", steps=2, operators=[])
    runs.run(values)
    found = runs.look(values)
    assert found.fates == {"dropped": 1, "trained": 3}
    assert found.metric("batch/num_groups") == [1.0, 2.0]
    (dropped,) = found.ask("select reason from fates where fate = 'dropped'")
    assert dropped["reason"]


def test_staleness_is_bounded_by_the_interval(runs: Runs) -> None:
    values = runs.recipe(steps=5, sync__method="checkpoint", sync__interval=2, sync__keep=9, checkpoint__every=3)
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "ttttt"
    assert found.metric("batch/staleness_max") == [0.0, 1.0, 0.0, 1.0, 0.0]
    sampled = found.ask("select step, min(policy_version) as low, max(policy_version_end) as high from experiences group by 1 order by 1")
    assert [(row["low"], row["high"]) for row in sampled] == [(0, 0), (0, 0), (2, 2), (2, 2), (4, 4)]
    # Every second step, the checkpoints' steps, and the last one.
    assert {version for version, known in found.versions.items() if known.uri} == {2, 3, 4, 5}


def test_a_run_that_learns_from_experts_samples_nothing(runs: Runs) -> None:
    values = runs.recipe("abcd", steps=2, algorithm={"name": "sft"}, rewards=[], operators=[])
    rows = "\n".join(f'{{"question": "{i}+0=", "answer": "{i}", "response": "{i}"}}' for i in range(4))
    Path(values["data"]["train"]["source"]).write_text(rows)
    values["rollout"] |= {"environment": {"name": "expert"}, "group_size": 1}
    runs.run(values)
    found = runs.look(values)
    assert found.fates == {"trained": 4}
    assert found.ask("select distinct source, reward, list_sum(logprobs) as total from experiences") == [
        {"source": "expert", "reward": None, "total": 0.0}
    ]
    losses = found.metric("trainer/loss")
    assert all(loss is not None and loss > 0 for loss in losses)
    # Figures that can't be measured are left out: a step's metrics are JSON that every reader takes.
    assert found.metric("rollout/reward_mean") == [None, None]
    assert found.ask("select (metrics->>'trainer/loss')::double as loss from steps order by step") == [{"loss": loss} for loss in losses]
