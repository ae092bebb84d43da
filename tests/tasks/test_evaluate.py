"""Scoring held-out tasks: each once, failures counted as wrong, and a broken grader is no verdict."""

from typing import Any

import pytest

from rft_core.errors import RolloutError
from tasks.evaluate import summary_of
from tests.tasks.runs import Runs


def held_out(runs: Runs) -> dict[str, Any]:
    return {"source": str(runs.folder / "sums.jsonl"), "format": {"prompt": "{question}", "chat": False}}


def test_versions_are_scored_when_that_is_due(runs: Runs) -> None:
    answers = {"0+0=": ["0"], "0+1=": ["1"], "+0=": ["1", "-"]}
    script = {"name": "scripted", "args": {"answers": answers, "default": ["2", "3"], "by_attempt": True}}
    values = runs.recipe(steps=5, data__evaluation=held_out(runs), evaluation__every=2, evaluation__num_tasks=4, rollout__engine=script)
    runs.run({**values, "operators": []})
    found = runs.look(values)
    assert sorted(found.evaluations) == [0, 2, 4, 5]
    # 0+0, 0+1 and 0+2 are answered rightly, 0+3 is answered by 2.
    assert found.evaluations[2] == {
        "evaluation/exact": 0.75,
        "evaluation/reward": 0.75,
        "evaluation/num_tasks": 4.0,
        "evaluation/failed_frac": 0.0,
    }
    rows = found.ask("select version, response_text, answer, exact, reward, reason from answers order by version, answer")
    assert len(rows) == 16
    assert [(row["response_text"], row["exact"], row["reward"]) for row in rows[:4]] == [
        ("0", True, 1.0),
        ("1", True, 1.0),
        ("2", True, 1.0),
        ("2", False, 0.0),
    ]
    assert rows[3]["reason"] == "exact: said '2', not '3'"


def test_an_attempt_that_fails_is_a_wrong_answer(runs: Runs) -> None:
    script = {"name": "scripted", "args": {"answers": {"+0=": ["1", "-"]}, "default": ["2"], "by_attempt": True}}
    rewards = [{"name": "tests.explorer_parts:fails_at_two"}]
    values = runs.recipe(
        steps=1, rewards=rewards, data__evaluation=held_out(runs), evaluation__num_tasks=4, rollout__engine=script, operators=[]
    )
    runs.run(values)
    found = runs.look(values)
    assert found.evaluations[0]["evaluation/failed_frac"] == 0.25
    assert found.evaluations[0]["evaluation/reward"] == 0.0
    assert found.evaluations[0]["evaluation/exact"] == 0.0
    (failed,) = found.ask("select error, exact from answers where version = 0 and error is not null")
    assert failed["error"].startswith("RewardError: reward 'fails_at_two' raised ValueError: two")
    assert failed["exact"] is False


def test_a_broken_grader_is_no_verdict_on_a_model(runs: Runs) -> None:
    values = runs.recipe(
        steps=1, rewards=[{"name": "tests.explorer_parts:broken"}], data__evaluation=held_out(runs), evaluation__num_tasks=4
    )
    with pytest.raises(RolloutError) as raised:
        runs.run(values)
    assert str(raised.value).startswith(
        "evaluation: 4 of 4 attempts failed: 4 x RewardError: reward 'broken' raised OSError: the grader's file"
    )
    assert "\n" not in str(raised.value)
    found = runs.look(values)
    assert found.evaluations == {}
    assert found.num_issued == 0


def test_what_cannot_be_measured_is_left_out() -> None:
    answer = {"exact": None, "reward": None, "error": None}
    assert summary_of([answer, answer]) == {"evaluation/num_tasks": 2.0, "evaluation/failed_frac": 0.0}
    assert summary_of([answer, {"exact": True, "reward": 0.5, "error": None}, {"exact": False, "reward": None, "error": "x"}]) == {
        "evaluation/exact": 0.5,
        "evaluation/reward": 0.25,
        "evaluation/num_tasks": 3.0,
        "evaluation/failed_frac": pytest.approx(1 / 3),
    }
