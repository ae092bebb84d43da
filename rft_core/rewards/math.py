r"""The answer is mathematically equal to the right one, by the package math-verify.

What math-verify 0.9.0 takes for equal and is not, and how it is kept out here (each is a test):

- Without `$` it reads a part of an expression, so `3x+4y+14=0` equals any other equation `... = 0`
  (Math-Verify #60): whole expressions are given to it between `$`.
- `\mathrm{e}` is taken for a unit and cut off, which leaves `1-1/` and `1+1/`, both read as 1 (Math-Verify PR #82):
  letters are taken out of `\mathrm`, and what ends in an operator or an open brace is not read at all.
- Numbers are compared after rounding to six decimals, so `1/2004!` equals `1/2006!` (Math-Verify #14): numbers must
  also be close in relation to their size.
- `12:00` and `13:00` are both a division by zero: what is not a finite value is compared as text.
- `9^{9^{9}}` is worked out, which takes hours: numbers of too many digits are compared as text.
- Words are products of letters, so that `stressed` equals `desserts`: words are compared as text.
"""

import logging
import math
import re
from typing import Any

from rft_core.rewards.base import Score, rewards
from rft_core.rewards.text import AnswerConfig, gold_of, plain, shown, spoken
from rft_core.types import Task

RELATIVE_TOLERANCE = 1e-5
"""Largest difference of two numbers, over the larger one; `0.33333` is a third, and math-verify's own limit is 1e-6."""

MAX_DIGITS = 20_000
"""Digits of the largest number that is worked out; `2004!` has 5,737."""

MAX_BRACKETS = 60
"""Opening brackets in an answer that is read: the parser takes seconds over some dozen in each other."""

_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log exp sqrt "  # noqa: SIM905 - one a line reads worse
    "frac inf infty max min gcd lcm mod det".split()
)
"""Names of three letters and more that stand in expressions, though they are words."""
_GROWING = frozenset({"factorial", "factorial2", "subfactorial", "binomial", "gamma"})
_MARKED = re.compile(r"\$|\\\(|\\\[|\\boxed")
_WRAPPED_LETTER = re.compile(r"\\(?:mathrm|operatorname|mathit|rm|text)\s*\{\s*([A-Za-z]|\\[A-Za-z]+)\s*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXT_COMMAND = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
_BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_SCIENTIFIC = re.compile(r"^([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})$")
_CUT_OFF = re.compile(r"[-+*/^_=<>\\(\[{]\s*$")


@rewards.register("math", config=AnswerConfig)
class Math:
    r"""1 if the answer is equal to the right one, as numbers, formulas, sets or intervals; else 0.

    The answer is what the last `\boxed{}` holds; without one it is what stands between `$`, or the last expression.
    Its own time limits are off, since they only work in a process's main thread (Math-Verify #55): the scorer pool
    bounds the time from outside.
    """

    needs = ("answer",)

    def __init__(self, config: AnswerConfig) -> None:
        import math_verify  # noqa: PLC0415 - the heavy half
        import sympy  # type: ignore[import-untyped]  # noqa: PLC0415 - the heavy half

        # It warns once that its time limits are off; that is meant.
        logging.getLogger("math_verify").setLevel(logging.ERROR)
        self._library = math_verify
        self._sympy = sympy
        self._config = config

    def __call__(self, task: Task, answer: str) -> Score:
        gold = _tidy(gold_of(task))
        said = _tidy(final_answer(spoken(self._config, answer)))
        if not said:
            return Score(0.0, "empty")
        if _as_text(said) == _as_text(final_answer(gold)):
            return Score(1.0, "equal")
        if is_prose(final_answer(gold)):
            return Score(0.0, f"said {shown(said)}, not {shown(gold)}")
        golds, answers = self._read(gold), self._read(said)
        if not answers:
            return Score(0.0, f"no expression in {shown(said)}")
        right = any(self._equal(g, a) for g in golds for a in answers)
        return Score(1.0, "equal") if right else Score(0.0, f"{shown(said)} is not {shown(gold)}")

    def _read(self, text: str) -> list[Any]:
        """The expressions that the text means; nothing if only a part of it could be read."""
        marked = text if _MARKED.search(text) or is_prose(text) else f"${text}$"
        if marked is not text and (_is_cut_off(text) or len(re.findall(r"[(\[{]", text)) > MAX_BRACKETS):
            return []
        read = self._library.parse(marked, parsing_timeout=None)
        if any(isinstance(part, str) and _is_cut_off(part) for part in read):
            return []
        return [part for part in read if not isinstance(part, str) and self._is_usable(part)]

    def _equal(self, gold: Any, said: Any) -> bool:
        return self._library.verify(gold, said, timeout_seconds=None) and self._close(gold, said)

    def _is_usable(self, expression: Any) -> bool:
        if not isinstance(expression, self._sympy.Basic):
            return True
        return not expression.has(self._sympy.zoo, self._sympy.nan) and _digits(expression) <= MAX_DIGITS

    def _close(self, gold: Any, said: Any) -> bool:
        """Whether the numbers in two values that math-verify calls equal are close in relation to their size."""
        golds, answers = self._numbers(gold), self._numbers(said)
        if golds is None or answers is None or len(golds) != len(answers):
            return True
        return all(_difference(g, a) <= RELATIVE_TOLERANCE for g, a in zip(golds, answers, strict=True))

    def _numbers(self, value: Any) -> list[Any] | None:
        """The value of a number, or of each number in a tuple, interval or finite set; null for anything else."""
        sympy = self._sympy
        if isinstance(value, sympy.Expr):
            return [value.doit().evalf()] if value.is_number and value.is_finite is not False else None
        if not isinstance(value, sympy.Tuple | sympy.FiniteSet | sympy.Interval):
            return None
        parts = [self._numbers(part) for part in value.args if not isinstance(part, sympy.logic.boolalg.BooleanAtom)]
        numbers = [number for part in parts if part is not None for number in part]
        in_any_order = isinstance(value, sympy.FiniteSet) and all(number.is_real for number in numbers)
        return (sorted(numbers) if in_any_order else numbers) if all(parts) else None


def final_answer(text: str) -> str:
    r"""What the last `\boxed{}` of a text holds, or the whole text.

    Example:
        >>> final_answer(r"so \boxed{1} or rather \boxed{\frac{1}{2}}")
        '\\frac{1}{2}'
    """
    start = text.rfind(r"\boxed{")
    if start < 0:
        return text
    begin = start + len(r"\boxed{")
    depth = 1
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place]
    return text[begin:]


def is_prose(text: str) -> bool:
    """Whether a text has words in it that are not names of functions, so that it is not one expression."""
    words = re.findall(r"[^\W\d_]{3,}", _COMMAND.sub(" ", text))
    return any(word not in _FUNCTIONS for word in words)


def _tidy(text: str) -> str:
    text = _BOLD.sub(r"\1", text.replace(r"\$", "")).strip()
    text = _SCIENTIFIC.sub(r"\1*10^{\2}", text)
    return _WRAPPED_LETTER.sub(r"{\1}", text)


def _as_text(text: str) -> str:
    bare = _TEXT_COMMAND.sub(r"\1", text).strip().strip("$").rstrip(".")
    return plain(bare, ignore_case=True)


def _is_cut_off(latex: str) -> bool:
    return bool(_CUT_OFF.search(latex)) or latex.count("{") != latex.count("}")


def _digits(expression: Any) -> float:
    """About how many digits the largest number has that comes up when an expression is worked out."""
    inner = [_digits(part) for part in expression.args]
    if expression.is_Rational:
        return float(max(expression.p.bit_length(), expression.q.bit_length()) * math.log10(2))
    if expression.is_Pow:
        base, exponent = inner
        return max(exponent, base * _power_of_ten(exponent)) if base else exponent
    if type(expression).__name__ in _GROWING:
        count = _power_of_ten(inner[0])
        return count * max(inner[0], 1.0)
    return sum(inner) if expression.is_Mul else max(inner, default=0.0)


def _power_of_ten(digits: float) -> float:
    return 10.0**digits if digits < MAX_DIGITS.bit_length() else math.inf


def _difference(gold: Any, said: Any) -> float:
    """The difference of two numbers over the larger one; both may be too small or too large for a float."""
    larger = max(abs(gold), abs(said))
    return float(abs(gold - said) / larger) if larger else 0.0
