"""The last number of the answer is the right one."""

import re
from decimal import Decimal

from pydantic import NonNegativeFloat

from rft_core.errors import RewardError
from rft_core.rewards.base import Score, rewards
from rft_core.rewards.text import AnswerConfig, gold_of, shown, spoken
from rft_core.types import Task

NUMBER = re.compile(
    r"""
    (?<![A-Za-z_\d]) (?<!\d\.)               # not in the middle of a name or of another number
    (?P<sign>(?<![\w)\]}])[-+])? [$€£¥]? (?P<inner>(?<=[$€£¥])-)?   # a minus after a digit or bracket subtracts
    (?P<digits> (?: \d{1,3}(?:,\d{2,3})*,\d{3} (?!\d) | \d+ )       # thousands are grouped, a list of numbers is not
                (?: \.\d+ )?
              | \.\d+ )
    (?P<exponent> [eE][-+]?\d+ )?
    """,
    re.VERBOSE,
)


MAX_EXPONENT = 5
"""Characters of an exponent, as in `e+999`; beyond that decimal arithmetic overflows, and no right answer is that large."""


class NumericConfig(AnswerConfig):
    """Arguments of `numeric`."""

    tolerance: NonNegativeFloat = 0.0
    """Largest difference that is still right; decimals are compared exactly, so 0.5 equals .50."""


@rewards.register("numeric", config=NumericConfig)
class Numeric:
    """1 if the last number of the answer is that of the right one, else 0.

    Of a right answer that shows its working (GSM8K) the number after the last `####` counts. Currency signs, thousands
    commas and units don't count, nor does a comma or full stop after the number (helm #4337).
    """

    needs = ("answer",)

    def __init__(self, config: NumericConfig) -> None:
        self._config = config

    def __call__(self, task: Task, answer: str) -> Score:
        gold = last_number(gold_of(task).rpartition("####")[2])
        if gold is None:
            raise RewardError(
                f"the task's answer {shown(gold_of(task))} holds no number", "use `exact` or `math` for answers that are not numbers"
            )
        said = last_number(spoken(self._config, answer))
        if said is None:
            return Score(0.0, "no number")
        right = abs(said - gold) <= Decimal(str(self._config.tolerance))
        return Score(1.0, f"{said}") if right else Score(0.0, f"{said}, not {gold}")


def last_number(text: str) -> Decimal | None:
    """The last number that a text names; null if there is none.

    Example:
        >>> last_number("The answer is 72, in total, so the farmer has them.")
        Decimal('72')
        >>> last_number("-$1,234.50.")
        Decimal('-1234.50')
    """
    found = list(NUMBER.finditer(text.replace("\N{MINUS SIGN}", "-")))
    if not found:
        return None
    last = found[-1]
    negative = last["inner"] or last["sign"] == "-"
    exponent = last["exponent"] or ""
    if len(exponent) > MAX_EXPONENT:
        return Decimal("Infinity")
    value = Decimal(last["digits"].replace(",", "") + exponent)
    return -value if negative else value
