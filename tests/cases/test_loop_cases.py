"""Public reports about whole runs: what is trained, what is logged, where a run ends. Each test cites its report."""

from typing import Any

import pytest

from rft_core.errors import RolloutError
from tests import loop
from tests.tasks.runs import Runs


def script(**answers: Any) -> dict[str, Any]:
    return {"name": "scripted", "args": {"default": [], **answers, "by_attempt": True}}


def test_b02_attempts_without_a_reward_are_stored_counted_and_not_trained(runs: Runs) -> None:
    """trl PR #5902: of a group with rewards [1, 0, None] the first two are trained, the third is there to be seen."""
    values = runs.recipe("aa", steps=1, rewards=[{"name": "tests.explorer_parts:judge"}], rollout__group_size=3)
    values["rollout"]["engine"] = script(answers={"+0=0": ["0", "4", "13"]}, default=["13", "13", "1"])
    runs.run(values)
    found = runs.look(values)
    rows = found.ask("select slot, reward, error, fate from experiences order by slot, attempt")
    assert [(row["reward"], row["error"], row["fate"]) for row in rows] == [
        (1.0, None, "trained"),
        (0.0, None, "trained"),
        (None, None, "trained"),
        # With one reward alone there is nothing to compare (trl PR #5773).
        (None, None, "dropped"),
        (None, None, "dropped"),
        (1.0, None, "dropped"),
    ]
    assert found.metric("rollout/num_attempts") == [6.0]
    assert found.metric("rollout/reward_mean") == [pytest.approx(2 / 3)]
    # `0` and `4` with their ends: the six tokens of the answer `13` are not among them.
    assert found.metric("trainer/num_tokens") == [4.0]
    assert found.metric("trainer/advantage_std") == [pytest.approx(0.5**0.5, rel=1e-4)]


def test_b27_more_steps_go_on_as_if_they_had_been_there_from_the_start(runs: Runs) -> None:
    """verl #7401: a run that was resumed at the end of an epoch skipped one and ended without a step."""
    whole = runs.recipe("abcd", name="whole", steps=4)
    runs.run(whole)
    values = runs.recipe("abcd", steps=2)  # ends at the end of the first epoch
    assert runs.run(values).steps == [1, 2]
    values["steps"] = 4
    heard = runs.run(values)
    assert heard.begun == [(2, 4)]
    assert heard.steps == [3, 4]
    found, expected = runs.look(values), runs.look(whole)
    assert found.weights(4) == expected.weights(4)
    assert found.fates == expected.fates == {"trained": 8}
    assert [row["n"] for row in found.ask("select count(*) as n from leases group by task_id order by task_id")] == [
        row["n"] for row in expected.ask("select count(*) as n from leases group by task_id order by task_id")
    ]
    summary = loop.summary(values)
    assert (summary["steps"], summary["steps_this_time"]) == (4, 2)


def test_b29_steps_or_epochs_whichever_ends_first(runs: Runs) -> None:
    """NeMo-RL PR #3248: with epochs 2 and steps 1000 the run went on to step 1000."""
    values = runs.recipe("abcde", steps=1000, epochs=1)
    runs.run(values)
    found = runs.look(values)
    assert found.per_step == {1: 2, 2: 2, 3: 1}
    assert found.statuses() == "ttt"
    assert found.ask("select count(distinct task_id) as n from leases") == [{"n": 5}]
    assert "000003" in found.folders("checkpoints")
    fewer = runs.recipe("abcde", name="fewer", steps=2, epochs=3)
    runs.run(fewer)
    assert runs.look(fewer).per_step == {1: 2, 2: 2}


def test_b38_raw_lengths_are_logged_although_truncated_answers_are_dropped(runs: Runs) -> None:
    """trl #3476: where truncated rows were masked, the logged lengths were those of the rest."""
    operators = [{"name": "drop_truncated"}, {"name": "drop_no_signal"}]
    values = runs.recipe("a", steps=1, rollout__group_size=4, rollout__max_tokens=3, operators=operators, epochs=1)
    values["rollout"]["engine"] = script(default=["0", "-", "123456", "1234567"])
    runs.run(values)
    found = runs.look(values)
    assert found.metric("rollout/response_tokens_mean") == [(2 + 2 + 3 + 3) / 4]
    assert found.metric("rollout/truncated_frac") == [0.5]
    assert found.metric("trainer/num_tokens") == [4.0]
    assert found.ask("select dropped_by, count(*) as n from experiences group by 1 order by 1 nulls last") == [
        {"dropped_by": "drop_truncated", "n": 2},
        {"dropped_by": None, "n": 2},
    ]


def test_b39_a_step_of_which_everything_is_cut_off_is_skipped_with_finite_figures(runs: Runs) -> None:
    """trl PR #5826 (#5662): fully truncated rows made the loss NaN."""
    values = runs.recipe("abcd", steps=2, rollout__max_tokens=3, operators=[{"name": "drop_truncated"}])
    values["rollout"]["engine"] = script(answers={"0+0=": ["123456"], "1+0=": ["123456"]}, default=["2", "3"])
    runs.run(values)
    found = runs.look(values)
    assert found.statuses() == "st"
    assert found.fates == {"dropped": 2, "trained": 2}
    assert found.ask("select distinct reason from fates where fate = 'dropped'") == [
        {"reason": "drop_truncated: answer cut off at the token limit"}
    ]
    figures = [value for row in found.steps for value in row.metrics.values()]
    assert all(value == value and abs(value) < float("inf") for value in figures)


def test_b39_prompts_longer_than_the_context_are_rows_with_a_reason(runs: Runs) -> None:
    """trl PR #5826 (#5662): a context shorter than the prompt. Here the plan refuses it; at run time it is a failed attempt."""
    values = runs.recipe("aaa", steps=1, rollout__batch_groups=3)
    values["rollout"]["environment"] = {"name": "tests_shouting"}
    with pytest.raises(RolloutError, match="6 of 6 attempts failed: 6 x PromptTooLongError: the prompt has 36 tokens, the context has 32"):
        runs.run(values)
    assert runs.look(values).ask("select distinct len(tokens) as n, reward from experiences") == [{"n": 0, "reward": None}]
