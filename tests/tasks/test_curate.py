"""How many tasks a step leases: whole batches, refills, the end of the task set, and another try after a failure."""

import pytest

from rft_core.errors import RolloutError, TrainingError
from tests.tasks.runs import Runs


def test_a_short_batch_trains_what_is_left(runs: Runs) -> None:
    values = runs.recipe("a...bc", steps=3)
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "tst"
    assert found.metric("batch/num_groups") == [1.0, 0.0, 2.0]
    assert found.metric("batch/dropped_groups") == [1.0, 2.0, 0.0]
    assert found.fates == {"dropped": 3, "trained": 3}


def test_a_short_batch_is_topped_up(runs: Runs) -> None:
    values = runs.recipe("a..bcd", steps=2, rollout__short_batch="top_up")
    runs.run(values)
    found = runs.look(values)
    # Step 1: `a.` lacks one, `.` still does, `b` fills it.
    assert found.per_step == {1: 4, 2: 2}
    assert found.metric("batch/num_groups") == [2.0, 2.0]
    assert found.metric("rollout/num_attempts") == [8.0, 4.0]
    assert found.fates == {"dropped": 2, "trained": 4}
    assert [len(found.ask(f"select distinct lease_id from experiences where step = {step}")) for step in (1, 2)] == [4, 2]


def test_refills_are_bounded(runs: Runs) -> None:
    values = runs.recipe("......ab", steps=2, rollout__short_batch="top_up", rollout__max_refills=2)
    runs.run(values)
    found = runs.look(values)
    assert found.per_step == {1: 6, 2: 2}
    assert found.statuses() == "st"


def test_a_short_batch_can_be_skipped(runs: Runs) -> None:
    values = runs.recipe("a.bcd.ef", steps=4, rollout__short_batch="skip")
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "stst"
    # What a skipped step leaves is too old for the next one: never trained, and counted.
    assert found.fates == {"dropped": 2, "stale": 2, "trained": 4}


def test_a_task_set_that_is_used_up_early_ends_the_run_whole(runs: Runs) -> None:
    """Refills take the tasks of later steps: the last step that there is gets its checkpoint, evaluation and weights."""
    sums = {"source": str(runs.folder / "sums.jsonl"), "format": {"prompt": "{question}", "chat": False}}
    values = runs.recipe("a..b.c", steps=50, epochs=1, rollout__short_batch="top_up", data__evaluation=sums)
    heard = runs.run(values)
    found = runs.look(values)
    assert found.per_step == {1: 4, 2: 2}
    assert found.statuses() == "tt"
    assert "the task set is exhausted: the run ends after step 2" in heard.notes
    assert [row.checkpoint for row in found.steps] == [None, "checkpoints/000002"]
    assert set(found.evaluations) == {0, 2}
    assert found.versions[2].uri == "weights/v000002"
    again = runs.run(values)
    assert any(note.startswith("nothing to do: all 2 steps are done") for note in again.notes)
    assert len(runs.look(values).steps) == 2


def test_a_run_with_nothing_to_learn_from_says_so(runs: Runs) -> None:
    values = runs.recipe("......", steps=3)
    for _ in range(2):
        with pytest.raises(TrainingError, match="none of the 3 steps had anything to learn from; `rft show` says"):
            runs.run(values)
        found = runs.look(values)
        assert found.statuses() == "sss"
        assert found.fates == {"dropped": 6}
        assert not found.run_dir.summary_file.exists()


def test_after_too_many_failures_the_same_tasks_are_tried_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.folder)
    tests_of_the_grader = runs.folder / "unit_tests.txt"
    rewards = [{"name": "tests.explorer_parts:reads_a_file"}]
    values = runs.recipe("abcdefgh", steps=2, rewards=rewards, rollout__max_failed_frac=0.4)
    reference = {**values, "name": "reference"}
    tests_of_the_grader.touch()
    runs.run(reference)
    tests_of_the_grader.unlink()
    for attempt in (1, 2):
        with pytest.raises(
            RolloutError, match=r"step 1: 2 of 4 attempts failed: 2 x RewardError: reward 'reads_a_file' raised FileNotFoundError"
        ):
            runs.run(values)
        broken = runs.look(values)
        assert broken.fates == {"failed": 2 * attempt}
        assert broken.steps == []
        assert broken.ask("select count(distinct task_id) as n from leases") == [{"n": 2}]
    tests_of_the_grader.touch()
    runs.run(values)
    found, expected = runs.look(values), runs.look(reference)
    assert found.weights(2) == expected.weights(2)
    assert found.fates == {"failed": 4, "trained": 4}
    assert found.leases[:3] == [(1, 0, 0, "failed"), (1, 0, 1, "failed"), (1, 0, 2, "trained")]
    trained = "select task_id from experiences where fate = 'trained' order by step, slot, attempt"
    assert found.ask(trained) == expected.ask(trained)


def test_some_failures_are_rows_and_the_run_goes_on(scored_runs: Runs) -> None:
    """A reward that raises for some tasks, in real scorers."""
    answers = {"+0=1": ["2", "1"], "+0=2": ["1", "2"], "+0=": ["0", "-"]}
    script = {"name": "scripted", "args": {"answers": answers, "by_attempt": True}}
    rewards = [{"name": "tests.explorer_parts:fails_at_two"}]
    values = scored_runs.recipe("abc", steps=2, epochs=1, rewards=rewards, rollout__engine=script)
    scored_runs.run(values)
    found = scored_runs.look(values)
    assert found.metric("rollout/failed_frac") == [0.0, 0.5]
    assert found.metric("rollout/num_attempts") == [4.0, 2.0]
    (failed,) = found.ask("select error, reward, response_text from experiences where error is not null")
    assert failed["error"].startswith("RewardError: reward 'fails_at_two' raised ValueError: two")
    assert (failed["reward"], failed["response_text"]) == (None, "2")
    assert found.fates == {"dropped": 1, "trained": 2}
