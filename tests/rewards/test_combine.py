"""Several rewards as one, and the check of what they return."""

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rft_core.config import RewardSpec
from rft_core.errors import ConfigError, RewardError
from rft_core.rewards.base import Score
from rft_core.rewards.combine import MAX_REASON, RewardSet, missing_fields
from rft_core.types import Task

TASK = Task("t", (), answer="4", facts={"level": 2})
returned: Any = None


def give(task: Task, answer: str) -> Any:
    """A user's reward: returns whatever the test wants it to."""
    if isinstance(returned, BaseException):
        raise returned
    return returned


def echo(task: Task, answer: str, *, factor: float = 1.0) -> Score:
    """A user's reward with an argument."""
    return Score(factor * float(answer), f"said {answer}")


async def too_late(task: Task, answer: str) -> float:
    """A user's mistake."""
    return 1.0


OWN = f"{__name__}:give"


@pytest.fixture
def gives(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    return lambda value: monkeypatch.setitem(globals(), "returned", value)


def test_the_total_is_the_sum_of_weight_times_score() -> None:
    both = RewardSet([RewardSpec(name="exact", weight=0.5), RewardSpec(name=f"{__name__}:echo", weight=-2.0, args={"factor": 3.0})])
    reward = both(TASK, "4")
    assert reward.value == 0.5 - 2.0 * 12.0
    assert reward.parts == {"exact": 1.0, "echo": 12.0}
    assert reward.reason == "exact: equal; echo: said 4"
    assert both.needs == ("answer",)


def test_a_name_that_is_there_twice_is_numbered() -> None:
    names = RewardSet([RewardSpec(name="exact"), RewardSpec(name=OWN), RewardSpec(name="exact"), RewardSpec(name="exact")]).names
    assert names == ("exact", "give", "exact_2", "exact_3")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1.0),
        (True, 1.0),
        (False, 0.0),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (Fraction(1, 4), 0.25),
        (Score(np.float32(0.5)), 0.5),  # type: ignore[arg-type]
    ],
)
def test_whatever_is_one_number_counts_as_one(gives: Callable[[Any], None], value: Any, expected: float) -> None:
    gives(value)
    reward = RewardSet([RewardSpec(name=OWN)])(TASK, "4")
    assert reward.value == expected
    assert type(reward.value) is float
    assert type(reward.parts["give"]) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "returned nan"),
        (float("inf"), "returned inf"),
        (-np.inf, "returned -inf"),
        (np.float32("nan"), "returned np.float32(nan)"),
        (10**400, "returned 1000"),
        ("1.0", "returned the str '1.0'"),
        ([1.0], "returned the list [1.0]"),
        (np.array([1.0]), "returned the ndarray array([1.])"),
        (1j, "returned the complex 1j"),
        (Decimal(1), "returned the Decimal Decimal('1')"),
        ({"score": 1}, "returned the dict"),
        (Score([1.0]), "returned the list [1.0]"),  # type: ignore[arg-type]
        (ValueError("two\nlines"), "raised ValueError: two lines (test_combine.py:"),
        (SystemExit(2), "raised SystemExit: 2"),
    ],
)
def test_whatever_is_not_is_an_error_that_names_the_reward(gives: Callable[[Any], None], value: Any, said: str) -> None:
    gives(value)
    with pytest.raises(RewardError) as error:
        RewardSet([RewardSpec(name="exact"), RewardSpec(name=OWN)])(TASK, "4")
    assert str(error.value).startswith("reward 'give' ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_async_reward_is_refused() -> None:
    with pytest.raises(RewardError, match="reward 'too_late' is async"):
        RewardSet([RewardSpec(name=f"{__name__}:too_late")])(TASK, "4")


def test_a_function_of_another_shape_is_an_error_that_names_it() -> None:
    with pytest.raises(RewardError, match="reward 'echo' raised TypeError: .*unexpected keyword argument 'nonsense'"):
        RewardSet([RewardSpec(name=f"{__name__}:echo", args={"nonsense": 1})])(TASK, "4")


def test_a_reason_is_cut_and_made_fit_to_be_stored(gives: Callable[[Any], None]) -> None:
    gives(Score(1.0, "a\0\ud800" + "b" * 1000))
    reason = RewardSet([RewardSpec(name=OWN)])(TASK, "4").reason
    assert len(reason.encode()) <= 2 * MAX_REASON
    assert reason.startswith("give: a\ufffd?bbb")


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        ([], "rewards: found []; name at least one reward"),
        ([RewardSpec(name="exakt")], "a reward is one of exact"),
        (
            [RewardSpec(name="exact", args={"cases": True})],
            "rewards.0.args.cases: found True; unknown key; the keys here are: tag, ignore_case",
        ),
        ([RewardSpec(name="exact"), RewardSpec(name="no_such_module:f")], "rewards.1.name"),
    ],
)
def test_a_reward_that_is_not_there_is_refused(specs: list[RewardSpec], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        RewardSet(specs)
    assert said in str(error.value)


def test_a_module_that_breaks_when_it_is_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "breaks_at_import.py").write_text("raise ValueError('at import')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"rewards.0.name: found 'breaks_at_import:f'; it must load without an error \(ValueError: at import\)"
    ):
        RewardSet([RewardSpec(name="breaks_at_import:f")])


def test_a_task_without_the_field_that_a_reward_needs_is_an_error() -> None:
    assert missing_fields(TASK, ("answer", "level", "response", "unit")) == ["response", "unit"]
    with pytest.raises(RewardError, match="reward 'exact' needs 'answer', which the task does not have"):
        RewardSet([RewardSpec(name="exact")])(Task("t", ()), "4")


def test_the_name_of_each_reward_is_told_before_it_runs() -> None:
    told: list[str] = []
    RewardSet([RewardSpec(name="exact"), RewardSpec(name="numeric")])(TASK, "4", told.append)
    assert told == ["exact", "numeric"]
