"""Several rewards as one, with what they return checked."""

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from traceback import extract_tb
from typing import Any

from rft_core.config import RewardSpec
from rft_core.errors import ConfigError, RewardError, TidemillError
from rft_core.rewards.base import Score, Scorer, rewards
from rft_core.types import Reward, Task

MAX_REASON = 500
"""Characters of a reason that are kept: it is stored with every attempt."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    weight: float
    scorer: Scorer


class RewardSet:
    """The rewards of a recipe: their weighted sum, and the score of each by its name.

    The sum is null where a reward had nothing to say (returned None): the attempt is then not trained, and does not
    count in its group's mean.

    Args:
        specs: At least one reward. A name that is there twice is numbered, as in `exact` and `exact_2`.

    Raises:
        ConfigError: A reward is unknown, or its arguments are wrong.
    """

    def __init__(self, specs: Sequence[RewardSpec]) -> None:
        if not specs:
            raise ConfigError("rewards", [], "name at least one reward")
        scorers = [_built(spec, f"rewards.{i}") for i, spec in enumerate(specs)]
        names = _numbered([spec.name.rpartition(":")[2] for spec in specs])
        self._parts = tuple(_Part(name, spec.weight, scorer) for name, spec, scorer in zip(names, specs, scorers, strict=True))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts, in the recipe's order."""
        return tuple(part.name for part in self._parts)

    @property
    def needs(self) -> tuple[str, ...]:
        """What a task must bring for all of them: `answer`, `response`, or the name of a field of its row."""
        return tuple(dict.fromkeys(need for part in self._parts for need in part.scorer.needs))

    def __call__(self, task: Task, answer: str, on_start: Callable[[str], None] = lambda name: None) -> Reward:
        """Score one answer.

        Args:
            task: The task.
            answer: What the policy said last.
            on_start: Told the name of each reward before it runs, so that the culprit is known if it never returns.

        Raises:
            RewardError: A reward raised, returned something else than a finite number, or lacks a field; names the reward.
        """
        scores: list[tuple[_Part, Score]] = []
        for part in self._parts:
            on_start(part.name)
            scores.append((part, _score(part, task, answer)))
        values = [(part, score.value) for part, score in scores if score.value is not None]
        known = len(values) == len(scores)
        return Reward(
            value=sum(part.weight * value for part, value in values) if known else None,
            parts={part.name: value for part, value in values},
            reason=_reason(scores),
        )


def missing_fields(task: Task, needs: Iterable[str]) -> list[str]:
    """What of `needs` the task does not bring."""
    own = {"answer": task.answer, "response": task.response}
    return [need for need in needs if (own[need] if need in own else task.facts.get(need)) is None]


def _built(spec: RewardSpec, key: str) -> Scorer:
    try:
        return rewards.build(spec.name, spec.args, key)
    except TidemillError:
        raise
    except Exception as error:  # a user's module, imported here: it may raise anything
        text = " ".join(str(error).split())
        raise ConfigError(key, spec.name, f"it must load without an error ({type(error).__name__}: {text[:200]})") from error


def _score(part: _Part, task: Task, answer: str) -> Score:
    missing = missing_fields(task, part.scorer.needs)
    if missing:
        raise RewardError(f"reward {part.name!r} needs {missing[0]!r}, which the task does not have", "see `format` in the recipe")
    try:
        returned: Any = part.scorer(task, answer)
    except RewardError as error:
        raise RewardError(f"reward {part.name!r}: {error.found}", error.remedy) from error
    except (Exception, SystemExit) as error:  # a user's code: whatever it raises is recorded with the attempt
        text = " ".join(str(error).split())
        raise RewardError(
            f"reward {part.name!r} raised {type(error).__name__}: {text[:200]}{_place(error)}", "a reward returns a number for every answer"
        ) from error
    score = returned if isinstance(returned, Score) else Score(returned)
    return Score(_number(part.name, score.value), str(score.reason))


def _number(name: str, returned: Any) -> float | None:
    """What a reward returned, as a finite float: flags, NumPy scalars and 0-d tensors are numbers, a list of one is not."""
    if returned is None:
        return None
    right = "a reward returns one finite number for one answer, a Score, or None where it has nothing to say"
    if inspect.iscoroutine(returned):
        returned.close()
        raise RewardError(f"reward {name!r} is async", "a reward is a plain function; the pool runs it beside the others")
    scalar = returned.item() if getattr(returned, "shape", None) == () else returned
    if not isinstance(scalar, Real):
        raise RewardError(f"reward {name!r} returned the {type(returned).__name__} {_brief(returned)}", right)
    try:
        value = float(scalar)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise RewardError(f"reward {name!r} returned {_brief(returned)}", right)
    return value


def _brief(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's class: its __repr__ may raise anything
        return f"(its repr raised {type(error).__name__})"
    return text if len(text) <= 80 else text[:79] + "…"


def _place(error: BaseException) -> str:
    """The line of the user's code that raised; nothing if it was the call itself that failed."""
    frames = extract_tb(error.__traceback__)
    own = str(Path(__file__).parent)
    outside = [frame for frame in frames if not frame.filename.startswith(own)]
    return f" ({Path(outside[-1].filename).name}:{outside[-1].lineno})" if outside else ""


def _reason(scores: list[tuple[_Part, Score]]) -> str:
    said = [f"{part.name}: {score.reason}" for part, score in scores if score.reason]
    text = "; ".join(said).encode(errors="replace").decode().replace("\0", "�")
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


def _numbered(names: list[str]) -> list[str]:
    """The names with `_2`, `_3` after those that came before.

    A name that is taken that way already is passed over.
    """
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    numbered = []
    for name in names:
        seen[name] += 1
        candidate = name if seen[name] == 1 else f"{name}_{seen[name]}"
        while candidate in taken:
            seen[name] += 1
            candidate = f"{name}_{seen[name]}"
        taken.add(candidate)
        numbered.append(candidate)
    return numbered
