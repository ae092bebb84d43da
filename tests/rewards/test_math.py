"""`math` on what math-verify gets wrong, and on what it must keep getting right."""

import pytest

from rft_core.rewards.math import Math, final_answer, is_prose
from rft_core.rewards.text import AnswerConfig
from rft_core.types import Task


@pytest.fixture(scope="module")
def reward() -> Math:
    return Math(AnswerConfig())


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("840", r"\boxed{840}"),
        (r"\frac12", "1/2"),
        ("0.5", r"$\frac{1}{2}$"),
        ("x^2+2x+1", "(x+1)^2"),
        ("x^2", "The answer is $x^2$"),
        ("72", "The answer is 72."),
        ("11", "5+6=11"),
        ("1/e", "e^{-1}"),
        ("1,000", "1000"),
        ("33%", "0.33"),
        ("x=5", "5"),
        ("5 cm", "5"),
        (r"\$5", "5"),
        (r"60^\circ", "60"),
        ("1/3", "0.333333"),
        ("1e-7", "0.0000001"),
        ("2e3", "2000"),
        (r"\{1,2\}", r"\boxed{\{2,1\}}"),
        ("(0,1)", "(0, 1)"),
        ("3x+4y+14=0", "4y+3x+14=0"),
        ("3+4i", "4i+3"),
        ("even", r"\boxed{\text{Even}}"),
        ("12:00", "12:00"),
        ("(A)", "A"),
        ("1/2004!", r"\frac{1}{2004!}"),
    ],
)
def test_equal_answers_score_one(reward: Math, gold: str, said: str) -> None:
    assert reward(Task("t", (), answer=gold), said).value == 1.0


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("5", ""),
        ("5", r"\boxed{}"),
        ("5", "no idea"),
        ("5", r"\boxed{5} no wait \boxed{6}"),
        ("1", "1 or 2 or 3"),
        ("(0,1)", "[0,1]"),
        ("2021", "-2021"),
        (r"\{2,3,4\}", r"\{2,3\}"),
        ("12:00", "13:00"),
        ("stressed", r"\boxed{desserts}"),
        ("10^{-7}", r"2\cdot 10^{-7}"),
        ("(0,10^{-8})", "(0,10^{-9})"),
        ("0.33", "33.1%"),
        ("1+1/", "1-1/"),
        ("5", "9^{9^{9}}"),
        ("5", r"\frac{" * 60),
        ("5", "{" * 300),
        ("7", "\0"),
        ("7", "\ud800"),
    ],
)
def test_other_answers_score_zero(reward: Math, gold: str, said: str) -> None:
    assert reward(Task("t", (), answer=gold), said).value == 0.0


def test_the_last_box_counts_with_the_braces_in_it() -> None:
    assert final_answer(r"\boxed{1}, no: \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert final_answer(r"cut off \boxed{\frac{1}{") == r"\frac{1}{"
    assert final_answer("no box") == "no box"


def test_words_are_prose_and_functions_are_not() -> None:
    assert is_prose("The answer is 4")
    assert not is_prose(r"\sin(x) + log(y) + 5 cm")
