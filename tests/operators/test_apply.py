"""Pipelines: the account adds up, and an operator that does too much is found out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.config import ExtensionSpec
from rft_core.errors import ConfigError, TidemillError
from rft_core.operators import Group
from rft_core.operators.apply import NamedOperator, apply, build_operators, pipeline_version
from rft_core.types import StopReason
from tests.operators.groups import group

Groups = tuple[Group, ...]
SPECS = (
    ExtensionSpec(name="drop_truncated"),
    ExtensionSpec(name="drop_no_signal"),
    ExtensionSpec(name="soft_overlong", args={"cache_tokens": 4}),
)
GROUPS = st.lists(
    st.builds(
        lambda rewards, length, stop: group("g", rewards, length, stop),
        st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), max_size=5),
        st.integers(0, 14),
        st.sampled_from([*StopReason, None]),
    ),
    max_size=5,
)


@settings(deadline=None)
@given(GROUPS)
def test_operators_conserve_groups_and_attempts_and_account_for_each(drawn: list[Group]) -> None:
    groups = tuple(replace(one, group_id=f"g{i}") for i, one in enumerate(drawn))
    applied = apply(groups, build_operators(SPECS, max_tokens=10))
    assert [one.group_id for one in applied.groups] == [one.group_id for one in groups]
    for before, after in zip(groups, applied.groups, strict=True):
        assert [attempt.rows for attempt in after.attempts] == [attempt.rows for attempt in before.attempts]
    left = sum(len(one.live()) for one in groups)
    for entry in applied.account:
        assert entry.attempts_in == left
        left = entry.attempts_out
        assert entry.attempts_in - entry.attempts_out == sum(entry.dropped.values())
    assert left == sum(len(one.live()) for one in applied.groups)
    assert apply(groups, build_operators(SPECS, max_tokens=10)) == applied


def test_the_account_tells_what_each_did_and_why() -> None:
    groups = (
        group("cut", [1.0, 0.0], stop=StopReason.LENGTH),
        group("flat", [1.0, 1.0, None]),
        group("long", [1.0, 0.0], length=9),
        group("good", [1.0, 0.0]),
    )
    truncated, flat, long = apply(groups, build_operators(SPECS, max_tokens=10)).account
    assert (truncated.attempts_in, truncated.attempts_out, truncated.groups_in, truncated.groups_out) == (8, 6, 4, 3)
    assert truncated.dropped == {"answer cut off at the token limit": 2}
    assert (flat.name, flat.attempts_out, flat.groups_out, flat.dropped) == ("drop_no_signal", 4, 2, {"all rewards equal": 2})
    assert (long.attempts_out, long.dropped, long.changed_rewards) == (4, {}, 2)


def lose(groups: Groups) -> Groups:
    return groups[1:]


def turn_round(groups: Groups) -> Groups:
    return groups[::-1]


def shorten(groups: Groups) -> Groups:
    return (replace(groups[0], attempts=groups[0].attempts[1:]), *groups[1:])


def swap(groups: Groups) -> Groups:
    return (replace(groups[0], attempts=groups[0].attempts[::-1]), *groups[1:])


def revive(groups: Groups) -> Groups:
    return tuple(replace(one, attempts=tuple(replace(a, dropped_by=None) for a in one.attempts)) for one in groups)


def poison(groups: Groups) -> Groups:
    return tuple(replace(one, attempts=tuple(replace(a, reward=float("nan")) for a in one.attempts)) for one in groups)


def nothing(groups: Groups) -> Any:
    return None


def names(groups: Groups) -> Any:
    return tuple(one.group_id for one in groups)


def fail(groups: Groups) -> Groups:
    raise ZeroDivisionError("two\nlines")


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (lose, "returned other groups"),
        (turn_round, "returned other groups, or the same ones in another order"),
        (shorten, "returned 1 attempts of a group of 2"),
        (swap, "changed the rows of an attempt"),
        (revive, "took back what another operator had dropped"),
        (poison, "made a reward nan"),
        (nothing, "raised TypeError"),
        (names, "returned other groups"),
        (fail, "raised ZeroDivisionError: two lines; an operator returns the groups that it was given"),
    ],
)
def test_an_operator_that_does_more_than_it_may_is_named(operator: Callable[[Groups], Any], said: str) -> None:
    groups = (group("a", [1.0, 0.0]), group("b", [1.0, 0.0]))
    groups = (groups[0], groups[1].drop("earlier", "why"))
    with pytest.raises(TidemillError, match="^operator 'own' ") as error:
        apply(groups, [NamedOperator("own", operator)])
    assert said in str(error.value)


def test_a_pipeline_is_named_by_its_operators_arguments_and_order() -> None:
    spelled_out = ExtensionSpec(name="drop_no_signal", args={"min_spread": 1e-9})
    assert pipeline_version(SPECS) == pipeline_version((SPECS[0], spelled_out, SPECS[2]))
    other = ExtensionSpec(name="soft_overlong", args={"cache_tokens": 5})
    versions = [pipeline_version(specs) for specs in ((), SPECS[:1], SPECS[:2], SPECS, SPECS[::-1], (*SPECS[:2], other))]
    assert len(set(versions)) == len(versions)


def test_an_operator_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"operators.1.name: found 'drop_nothing'; a operator is one of .*soft_overlong"):
        build_operators((SPECS[0], ExtensionSpec(name="drop_nothing")), max_tokens=10)
