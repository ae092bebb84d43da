"""What every reward gives, and how plain functions become one."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from pydantic import ConfigDict

from rft_core.errors import ConfigError
from rft_core.registry import Extension, ExtensionConfig, Registry
from rft_core.types import Task


@dataclass(frozen=True, slots=True)
class Score:
    """One reward's verdict on one answer."""

    value: float | None
    """Null where this reward has nothing to say about the answer."""
    reason: str = ""


class Scorer(Protocol):
    """A reward: a pure function of task and answer. It runs in a worker process, under the attempt's deadline."""

    needs: tuple[str, ...]
    """What a task must bring: `answer`, or the name of a field of its row."""

    def __call__(self, task: Task, answer: str) -> Score: ...


class FunctionConfig(ExtensionConfig):
    """Arguments of a plain function: passed to it by keyword."""

    model_config = ConfigDict(extra="allow")


class FunctionReward:
    """Any Python function `(task, answer, **args) -> float | Score | None` as a reward."""

    needs: tuple[str, ...] = ()

    def __init__(self, config: FunctionConfig, function: Callable[..., Any]) -> None:
        self._args: Mapping[str, Any] = config.model_extra or {}
        self._function = function

    def __call__(self, task: Task, answer: str) -> Score:
        score = self._function(task, answer, **self._args)
        return score if isinstance(score, Score) else Score(score)


class RewardRegistry(Registry[Scorer]):
    """Rewards by name; `package.module:function` adopts a plain function."""

    def _adopt(self, name: str, target: Any, key: str) -> Extension[Scorer]:
        if not callable(target) or inspect.isclass(target):
            raise ConfigError(key, name, "a reward is a function (task, answer) -> float, or a registered class")
        function = cast(Callable[..., Any], target)
        return Extension(name, FunctionConfig, lambda config: FunctionReward(config, function))


rewards = RewardRegistry("reward", "rft_core.rewards")
"""Rewards are built as `cls(config)`."""
