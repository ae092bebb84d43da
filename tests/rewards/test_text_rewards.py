"""`exact`, `positions`, `numeric` and `format` on the answers that trip graders."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rft_core.errors import RewardError
from rft_core.rewards import Score, rewards
from rft_core.rewards.numeric import last_number
from rft_core.types import Task


def score(name: str, gold: str | None, said: str, **args: Any) -> Score:
    return rewards.build(name, args, "rewards.0")(Task("t", (), answer=gold), said)


def value(name: str, gold: str | None, said: str, **args: Any) -> float | None:
    return score(name, gold, said, **args).value


@pytest.mark.parametrize(
    ("gold", "said", "expected"),
    [
        ("queen lion boat", "queen lion boat", 1.0),
        ("queen lion boat", "  queen\tlion \n boat\n", 1.0),
        ("caf\u00e9", "cafe\u0301", 1.0),
        ("queen lion boat", "queen lion", 0.0),
        ("queen", "the queen", 0.0),
        ("queen", "Queen", 0.0),
        ("queen", "", 0.0),
        ("", "", 0.0),
        ("queen", "que\0en", 0.0),
        ("a\ud800", "a\ud800", 1.0),
    ],
)
def test_exact_compares_whole_answers(gold: str, said: str, expected: float) -> None:
    assert value("exact", gold, said) == expected


def test_exact_may_ignore_case_and_look_into_a_tag() -> None:
    assert value("exact", "Straße", "STRASSE", ignore_case=True) == 1.0
    assert value("exact", "4", "<think>5</think><answer>3</answer> no <answer> 4\n</answer>", tag="answer") == 1.0
    assert value("exact", "4", "4", tag="answer") == 0.0
    with pytest.raises(ValidationError):
        rewards.get("exact", "").config_class.model_validate({"tag": "an(swer"})


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_exact_gives_nothing_to_a_part_of_the_answer(gold: str, said: str) -> None:
    equal = said.split() == gold.split() and bool(said.split())
    assert value("exact", gold, said) == float(equal) or not gold.isascii() or not said.isascii()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("queen lion boat", 1.0),
        ("queen boat lion", 1 / 3),
        ("queen lion", 2 / 3),
        ("queen lion boat and more words here", 3 / 7),
        ("lion boat queen", 0.0),
        ("", 0.0),
    ],
)
def test_positions_charges_for_words_that_are_missing_or_too_many(said: str, expected: float) -> None:
    assert value("positions", "queen lion boat", said) == pytest.approx(expected)
    assert value("positions", "", "") == 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", "72"),
        ("#### 1,000", "1000"),
        ("It is $1,234.50.", "1234.50"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("\u22127", "-7"),
        ("10-3", "3"),
        ("5 - 4", "4"),
        ("x = -3", "-3"),
        ("2^{-3}", "-3"),
        ("1, 2", "2"),
        ("1,2", "2"),
        ("12,345,678", "12345678"),
        ("1,00,000", "100000"),
        (".5", "0.5"),
        ("1e5", "1E+5"),
        ("100m2", "100"),
        ("答案是72。", "72"),
        ("50%", "50"),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str) -> None:
    assert str(last_number(text)) == number


@pytest.mark.parametrize("text", ["", "none", ",", "-", "x2", "v1"])
def test_a_text_without_a_number(text: str) -> None:
    assert last_number(text) is None


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_has_a_number_or_none(text: str) -> None:
    assert value("numeric", "3", text) in (0.0, 1.0)


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.text("abc .,!?()", max_size=10))
def test_a_number_is_found_whatever_follows_it(number: int, after: str) -> None:
    assert last_number(f"The answer is {number:,} {after}") == number


def test_numeric_takes_the_gold_after_the_last_marker_and_compares_decimals() -> None:
    gold = "He has 48/2 = <<48/2=24>>24 clips.\n#### 1,024"
    assert value("numeric", gold, "The answer is 1024.00") == 1.0
    assert value("numeric", gold, "The answer is 24") == 0.0
    assert value("numeric", "0.5", "0.52", tolerance=0.02) == 1.0
    assert value("numeric", "0.5", "0.52") == 0.0
    assert value("numeric", "10000001", "10000002") == 0.0


@pytest.mark.parametrize("said", ["", "no idea", "1e99999", "9" * 5000, "1e9999"])
def test_numeric_scores_what_is_no_number_or_an_absurd_one_zero(said: str) -> None:
    assert value("numeric", "1", said) == 0.0


def test_numeric_says_that_the_right_answer_is_no_number() -> None:
    with pytest.raises(RewardError, match="the task's answer 'Paris' holds no number; use `exact` or `math`"):
        score("numeric", "Paris", "3")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("<think>a\nb</think>\n<answer>4</answer>", 1.0),
        ("  <think></think><answer></answer>\n", 1.0),
        ("<answer>4</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>4</answer> more", 0.0),
        ("<think>a</think><answer>3</answer><answer>4</answer>", 0.0),
        ("<think>a<think></think><answer>4</answer>", 0.0),
        ("<think>a</think>", 0.0),
        ("", 0.0),
    ],
)
def test_format_wants_each_tag_once_and_nothing_else(said: str, expected: float) -> None:
    assert value("format", None, said, tags=["think", "answer"]) == expected


def test_format_matches_a_pattern_against_the_whole_answer() -> None:
    assert value("format", None, "yes", pattern="yes|no") == 1.0
    assert value("format", None, "yes, or no", pattern="yes|no") == 0.0


@pytest.mark.parametrize("args", [{}, {"pattern": "a", "tags": ["b"]}, {"pattern": "("}, {"tags": ["a b"]}])
def test_format_refuses_what_is_no_form(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rewards.get("format", "").config_class.model_validate(args)


@pytest.mark.parametrize("name", ["exact", "positions", "numeric", "math"])
def test_a_reason_tells_right_from_wrong(name: str) -> None:
    assert score(name, "42", "42").reason != score(name, "42", "43").reason != ""
