"""The score that a reasoning-gym set gives by itself."""

from typing import Any, Literal

from rft_core.errors import RewardError
from rft_core.rewards.base import Score, rewards
from rft_core.rewards.text import AnswerConfig, spoken
from rft_core.types import Task


class ReasoningGymConfig(AnswerConfig):
    """Arguments of `reasoning_gym`."""

    unreadable: Literal["fail", "zero"] = "fail"
    """Some of its scorers raise on answers that they can't read: the attempt fails, or scores 0."""


@rewards.register("reasoning_gym", config=ReasoningGymConfig)
class ReasoningGym:
    """The set's own score of the answer, 0 to 1, for tasks of `reasoning-gym:NAME`."""

    needs = ("reasoning_gym",)

    def __init__(self, config: ReasoningGymConfig) -> None:
        from reasoning_gym import create_dataset  # noqa: PLC0415 - the heavy half

        from rft_core.taskset.gym import untagged  # noqa: PLC0415 - the heavy half

        self._config = config
        self._create = create_dataset
        self._untagged = untagged
        self._sets: dict[str, Any] = {}

    def __call__(self, task: Task, answer: str) -> Score:
        fact = task.facts["reasoning_gym"]
        gym = self._set(fact["name"], fact["args"])
        try:
            value = gym.score_answer(spoken(self._config, answer).strip(), self._untagged(fact["entry"]))
        except Exception as error:  # what a scorer raises on free text is not documented, and differs from set to set
            if self._config.unreadable == "zero":
                return Score(0.0, f"unreadable: {type(error).__name__}")
            found = f"the scorer of {fact['name']} raised {type(error).__name__} ({error})"
            raise RewardError(found, "`unreadable: zero` scores such answers 0") from error
        return Score(float(value))

    def _set(self, name: str, args: dict[str, Any]) -> Any:
        key = f"{name} {sorted(args.items())}"
        if key not in self._sets:
            self._sets[key] = self._create(name, **args, size=1)
        return self._sets[key]
