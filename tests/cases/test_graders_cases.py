"""What went wrong with graders for users of other systems: rows D22-D27 of the list of cases."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rft_core.config import RewardSpec
from rft_core.rewards.combine import RewardSet
from rft_core.rewards.numeric import last_number
from rft_core.types import Task


@pytest.fixture(scope="module")
def math() -> RewardSet:
    return RewardSet([RewardSpec(name="math")])


def score(reward: RewardSet, gold: str, said: str) -> float | None:
    return reward(Task("t", (), answer=gold), said).value


@pytest.mark.parametrize("wrap", ["{}", "${}$", r"\boxed{{{}}}", "The line is {}", "**{}**"])
def test_d22_equations_of_which_only_the_end_was_read(math: RewardSet, wrap: str) -> None:
    """Math-Verify #60: `3*x-1*y+13=0` is not `3x + 4y + 14=0`, with and without `$`."""
    assert score(math, "3x + 4y + 14=0", wrap.format("3*x-1*y+13=0")) == 0.0
    assert score(math, "3*x-1*y+13=0", wrap.format("3x + 4y + 14=0")) == 0.0


@pytest.mark.parametrize(
    ("gold", "said"),
    [("1/2004!", "1/2006!"), (r"1-1/\mathrm{e}", r"1+1/\mathrm{e}"), (r"1 - \frac{1}{\mathrm{e}}", r"1+1/\mathrm{e}"), ("2021", "-2021")],
)
@pytest.mark.parametrize("wrap", ["{}", "${}$", r"\boxed{{{}}}"])
def test_d23_expressions_that_were_cut_off_or_rounded_away(math: RewardSet, gold: str, said: str, wrap: str) -> None:
    """Math-Verify #14 and PR #82: `1/2004!` is not `1/2006!`, nor `1-1/e` `1+1/e`; each still equals itself."""
    assert score(math, gold, wrap.format(said)) == 0.0
    assert score(math, said, wrap.format(gold)) == 0.0
    assert score(math, gold, wrap.format(gold)) == 1.0


@pytest.mark.parametrize(("gold", "said"), [("840", r"\boxed{840} so \boxed{840}"), ("13", r"\text{13}"), ("73", "**73**")])
def test_d25_boxes_text_and_bold(math: RewardSet, gold: str, said: str) -> None:
    """Math-Verify #44, #37 and #76: the answer is found in each."""
    assert score(math, gold, said) == 1.0


def test_d26_verifying_in_a_thread(math: RewardSet) -> None:
    """verl #3407: math-verify's own time limits raise outside the main thread, which became a silent 0."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        assert thread.submit(score, math, r"\frac{1}{2}", "$0.5$").result() == 1.0
        assert thread.submit(score, math, r"\frac{1}{2}", "$0.6$").result() == 0.0


def test_d27_a_comma_after_the_last_number() -> None:
    """helm #4337, omlx PR #3484: a pattern for numbers must not find the comma of `in total, so`."""
    text = "The answer is 72, in total, so the farmer has 72, in all, as we said"
    assert str(last_number(text)) == "72"
    assert score(RewardSet([RewardSpec(name="numeric")]), "72", text) == 1.0
