"""How much of the answer stands where it should."""

from rft_core.rewards.base import Score, rewards
from rft_core.rewards.text import AnswerConfig, gold_of, plain, spoken
from rft_core.types import Task


class PositionsConfig(AnswerConfig):
    """Arguments of `positions`."""

    ignore_case: bool = False


@rewards.register("positions", config=PositionsConfig)
class Positions:
    """The share of words that equal the right answer's word at the same position.

    The share is taken of the longer of the two, so words that are left out cost as much as words too many.
    """

    needs = ("answer",)

    def __init__(self, config: PositionsConfig) -> None:
        self._config = config

    def __call__(self, task: Task, answer: str) -> Score:
        ignore_case = self._config.ignore_case
        said = plain(spoken(self._config, answer), ignore_case=ignore_case).split()
        gold = plain(gold_of(task), ignore_case=ignore_case).split()
        right = sum(a == b for a, b in zip(said, gold, strict=False))
        longest = max(len(said), len(gold))
        return Score(right / longest if longest else 0.0, f"{right} of {longest} words")
