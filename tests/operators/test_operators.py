"""The operators that come with Tidemill, by known answers."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.errors import ConfigError
from rft_core.operators import Attempt, Group, operators
from rft_core.operators.soft_overlong import SoftOverlong, SoftOverlongConfig
from rft_core.types import StopReason
from tests.operators.groups import group, row


def run(name: str, groups: tuple[Group, ...], **args: object) -> tuple[Group, ...]:
    return operators.build(name, args, "operators.0", max_tokens=10)(groups)


def reasons(one: Group) -> list[str]:
    return [attempt.drop_reason for attempt in one.attempts]


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1.0, 0.0], ""),
        ([1.0, None, 0.5], ""),
        ([0.3, 0.3, 0.3], "all rewards equal"),
        ([0.3, 0.1 + 0.2], "all rewards equal"),
        ([1.0, None, 1.0], "all rewards equal"),
        ([1.0, None], "fewer than two scored attempts"),
        ([1.0], "fewer than two scored attempts"),
        ([None, None], "fewer than two scored attempts"),
        ([], ""),
    ],
)
def test_drop_no_signal_keeps_groups_with_a_spread(rewards: list[float | None], reason: str) -> None:
    (one,) = run("drop_no_signal", (group("a", rewards),))
    assert reasons(one) == [reason] * len(rewards)
    assert {attempt.dropped_by for attempt in one.attempts} <= ({"drop_no_signal"} if reason else {None})


def test_drop_no_signal_looks_at_what_other_operators_left() -> None:
    mixed = group("a", [1.0, 1.0, 0.0])
    left = replace(mixed, attempts=(*mixed.attempts[:2], mixed.attempts[2].drop("other", "cut off")))
    (one,) = run("drop_no_signal", (left,))
    assert reasons(one) == ["all rewards equal", "all rewards equal", "cut off"]
    assert one.attempts[2].dropped_by == "other"


def test_drop_no_signal_has_a_threshold() -> None:
    assert run("drop_no_signal", (group("a", [0.0, 0.1]),), min_spread=0.2)[0].live() == ()
    assert len(run("drop_no_signal", (group("a", [0.0, 0.3]),), min_spread=0.2)[0].live()) == 2


def test_drop_truncated_leaves_out_attempts_whose_last_answer_is_cut_off() -> None:
    turns = {
        "cut": Attempt((row("a", stop=StopReason.LENGTH),), 1.0),
        "cut at last": Attempt((row("b"), row("c", stop=StopReason.LENGTH)), 1.0),
        "cut in between": Attempt((row("d", stop=StopReason.LENGTH), row("e")), 1.0),
        "whole": Attempt((row("f"),), 1.0),
        "failed": Attempt((row("g", stop=None),), None),
        "no rows": Attempt((), None),
    }
    (one,) = run("drop_truncated", (Group("g", tuple(turns.values())),))
    assert [name for name, attempt in zip(turns, one.attempts, strict=True) if attempt.dropped_by] == ["cut", "cut at last"]
    assert reasons(one)[0] == "answer cut off at the token limit"


PENALTIES = [(0, 0.0), (6, 0.0), (7, -0.5), (8, -1.0), (9, -1.5), (10, -2.0), (11, -2.0), (500, -2.0)]


@pytest.mark.parametrize(("num_tokens", "penalty"), PENALTIES)
def test_soft_overlong_is_dapos_formula(num_tokens: int, penalty: float) -> None:
    """L = 10, c = 4, f = 2: 0 up to 6 tokens, then -0.5 a token, and never below -2."""
    assert SoftOverlong(SoftOverlongConfig(cache_tokens=4, factor=2.0), max_tokens=10).penalty(num_tokens) == penalty


@settings(deadline=None)
@given(st.integers(1, 100), st.integers(0, 100), st.floats(0.0, 10.0), st.integers(0, 300))
def test_soft_overlong_falls_and_stays_in_its_bounds(band: int, more: int, factor: float, num_tokens: int) -> None:
    operator = SoftOverlong(SoftOverlongConfig(cache_tokens=band, factor=factor), max_tokens=band + more)
    assert -factor <= operator.penalty(num_tokens + 1) <= operator.penalty(num_tokens) <= 0.0


def test_soft_overlong_adds_to_the_reward_of_live_attempts_only() -> None:
    long = group("a", [1.0, None, 0.5], length=9)
    dropped = replace(long, attempts=(long.attempts[0], long.attempts[1], long.attempts[2].drop("other", "why")))
    (one,) = run("soft_overlong", (dropped,), cache_tokens=4, factor=2.0)
    assert [attempt.reward for attempt in one.attempts] == [-0.5, None, 0.5]
    assert run("soft_overlong", (long,), cache_tokens=4, max_tokens=100)[0] == long


def test_soft_overlong_refuses_a_band_longer_than_the_limit() -> None:
    with pytest.raises(ConfigError, match="cache_tokens: found 11; the band can't be longer than the limit of 10 tokens"):
        run("soft_overlong", (), cache_tokens=11)
