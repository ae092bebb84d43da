"""Run the operators of a recipe one after the other, and keep account of what each did."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rft_core.config import ExtensionSpec
from rft_core.errors import ConfigError, TidemillError
from rft_core.operators.base import Attempt, Group, Operator, operators
from rft_core.types import digest


@dataclass(frozen=True, slots=True)
class NamedOperator:
    """An operator as the recipe names it."""

    name: str
    operator: Operator


@dataclass(frozen=True, slots=True)
class OperatorAccount:
    """What one operator did."""

    name: str
    attempts_in: int
    """Attempts with a reward that no operator had dropped yet."""
    attempts_out: int
    """Those that it left."""
    groups_in: int
    """Groups with at least one such attempt."""
    groups_out: int
    dropped: Mapping[str, int]
    """Attempts that it left out, by reason."""
    changed_rewards: int
    """Attempts whose reward it changed."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What a pipeline made of some groups."""

    groups: tuple[Group, ...]
    account: tuple[OperatorAccount, ...]
    """One entry an operator, in order."""


def build_operators(specs: Sequence[ExtensionSpec], max_tokens: int) -> tuple[NamedOperator, ...]:
    """Build the operators of a recipe.

    Args:
        specs: In the order in which they run.
        max_tokens: `rollout.max_tokens`.

    Raises:
        ConfigError: An operator is unknown, or its arguments are wrong.
    """
    return tuple(NamedOperator(spec.name, _build(spec, f"operators.{i}", max_tokens)) for i, spec in enumerate(specs))


def _build(spec: ExtensionSpec, key: str, max_tokens: int) -> Operator:
    """Build an operator; one that refuses an argument knows its name, but not where it stands in the recipe."""
    try:
        return operators.build(spec.name, spec.args, key, max_tokens=max_tokens)
    except ConfigError as error:
        if error.key.startswith(f"{key}."):
            raise
        raise ConfigError(f"{key}.args.{error.key}", error.value, error.remedy) from None


def pipeline_version(specs: Sequence[ExtensionSpec]) -> str | None:
    """Name a pipeline by its operators and their arguments, defaults included; overlays are kept under it. Null if there are none."""
    if not specs:
        return None
    filled = [operators.configure(spec.name, spec.args, f"operators.{i}").model_dump(mode="json") for i, spec in enumerate(specs)]
    return digest("pipeline", *((spec.name, json.dumps(args, sort_keys=True)) for spec, args in zip(specs, filled, strict=True)))


def apply(groups: tuple[Group, ...], named: Sequence[NamedOperator]) -> Applied:
    """Run operators over groups.

    Args:
        groups: The groups of a step, with raw rewards.
        named: The operators, in order.

    Raises:
        TidemillError: An operator raised, or did more than change rewards and drop attempts; names the operator.
    """
    account = []
    for one in named:
        shaped = _run(one, groups)
        account.append(_account(one.name, groups, shaped))
        groups = shaped
    return Applied(groups, tuple(account))


def _run(one: NamedOperator, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    try:
        shaped = tuple(one.operator(groups))
    except Exception as error:  # a user's code: the message must name it
        text = " ".join(str(error).split())
        raise TidemillError(
            f"operator {one.name!r} raised {type(error).__name__}: {text[:200]}", "an operator returns the groups that it was given"
        ) from error
    wrong = _broken_rule(groups, shaped)
    if wrong:
        raise TidemillError(f"operator {one.name!r} {wrong}", "an operator may change rewards and drop attempts, nothing else")
    return shaped


def _broken_rule(before: tuple[Group, ...], after: tuple[Group, ...]) -> str:
    if [getattr(group, "group_id", None) for group in after] != [group.group_id for group in before]:
        return "returned other groups, or the same ones in another order"
    for old, new in zip(before, after, strict=True):
        if len(old.attempts) != len(new.attempts):
            return f"returned {len(new.attempts)} attempts of a group of {len(old.attempts)}"
        for was, now in zip(old.attempts, new.attempts, strict=True):
            if was.rows is not now.rows and was.rows != now.rows:
                return "changed the rows of an attempt"
            if was.dropped_by and (was.dropped_by, was.drop_reason) != (now.dropped_by, now.drop_reason):
                return "took back what another operator had dropped"
            if now.reward is not None and not (isinstance(now.reward, int | float) and math.isfinite(now.reward)):
                return f"made a reward {now.reward!r}"
    return ""


def _account(name: str, before: tuple[Group, ...], after: tuple[Group, ...]) -> OperatorAccount:
    pairs = [pair for old, new in zip(before, after, strict=True) for pair in zip(old.attempts, new.attempts, strict=True)]
    return OperatorAccount(
        name=name,
        attempts_in=sum(len(group.live()) for group in before),
        attempts_out=sum(len(group.live()) for group in after),
        groups_in=sum(bool(group.live()) for group in before),
        groups_out=sum(bool(group.live()) for group in after),
        dropped=Counter(now.drop_reason for was, now in pairs if _is_dropped(was, now)),
        changed_rewards=sum(was.reward != now.reward for was, now in pairs),
    )


def _is_dropped(was: Attempt, now: Attempt) -> bool:
    """Whether the attempt was live and no longer is."""
    return was.reward is not None and was.dropped_by is None and now.dropped_by is not None
