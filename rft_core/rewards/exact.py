"""The answer is the right one, word for word."""

from rft_core.rewards.base import Score, rewards
from rft_core.rewards.text import AnswerConfig, gold_of, plain, shown, spoken
from rft_core.types import Task


class ExactConfig(AnswerConfig):
    """Arguments of `exact`."""

    ignore_case: bool = False


@rewards.register("exact", config=ExactConfig)
class Exact:
    """1 if the whole answer equals the right one, apart from the space around words; else 0.

    Never a part of either: a comparison by `in` gives an empty answer full marks, and a policy learns to say nothing
    (Visual-RFT #176).
    """

    needs = ("answer",)

    def __init__(self, config: ExactConfig) -> None:
        self._config = config

    def __call__(self, task: Task, answer: str) -> Score:
        said = plain(spoken(self._config, answer), ignore_case=self._config.ignore_case)
        gold = plain(gold_of(task), ignore_case=self._config.ignore_case)
        if not said:
            return Score(0.0, "empty")
        return Score(1.0, "equal") if said == gold else Score(0.0, f"said {shown(said)}, not {shown(gold)}")
