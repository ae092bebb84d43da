"""The stored form of each value of a row, and which values have none."""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from rft_core.types import Source, StopReason

MAX_LOGPROB = 1e-4
"""A log-prob is at most 0; rounding in the engine may lift it this far."""

_INT32 = range(-(2**31), 2**31)
_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, sort_keys=True)
_MAX_DEPTH = 50  # of `info`: far more than people nest, and less than what readers of JSON give up at
_MAX_BITS = 14_000  # of an integer in `info`: Python reads none of more than 4,300 digits


@dataclass(frozen=True, slots=True)
class Form:
    """How one value a row is stored."""

    make: Callable[[Any], Any]
    """The stored form of a value; raises TypeError or ValueError where it has none."""
    right: str
    """What would be right."""
    have: Callable[[Sequence[Any]], bool] = lambda values: False
    """Whether all of some values have their stored form already: true only if `make` would change none. It takes a tenth of the time."""

    def or_null(self) -> "Form":
        """The same form for values that may be null."""
        return Form(
            lambda value: None if value is None else self.make(value),
            self.right,
            lambda values: self.have([value for value in values if value is not None]),
        )

    def stored(self, values: Sequence[Any]) -> Sequence[Any]:
        """The stored forms of values; raises TypeError or ValueError where one has none."""
        return values if self.have(values) else [self.make(value) for value in values]


@dataclass(frozen=True, slots=True)
class TokenForm:
    """How one value a token is stored."""

    pack: Callable[[Sequence[Any]], bytes]
    """The values of a row as bytes; raises TypeError, ValueError or OverflowError where one has no form."""
    dtype: type[np.generic]
    """What those bytes are."""
    fits: Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]
    """Which of them can be right."""
    right: str
    """What would be right."""
    optional: bool = False
    """A row may have none at all."""


def clean_text(text: str) -> str:
    """The same text as it can be stored: lone surrogates, which UTF-8 has no form for, become backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def jsonable(values: Iterable[tuple[str, Any]]) -> str:
    """Key-value pairs as JSON that every reader of JSON takes: one row that DuckDB can't parse would fail a question over all.

    Arrays and sets become lists. Lone surrogates become escapes; numbers that are not finite, and whatever else JSON has no
    form for, become their text.
    """
    found = dict(values)
    try:
        text = _JSON.encode(found)
        text.encode()
    except (TypeError, ValueError, RecursionError):  # a value without a form, NaN, keys of several types, a circle, a surrogate
        return _JSON.encode(_json_form(found, 0))
    return text


def _json_form(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and value.bit_length() < _MAX_BITS):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_as_text(key): _json_form(entry, depth + 1) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [_json_form(entry, depth + 1) for entry in value]
        if isinstance(value, set | frozenset):  # in one order, whatever the process: the same run makes the same table
            return sorted((_json_form(entry, depth + 1) for entry in value), key=_JSON.encode)
        if callable(getattr(value, "tolist", None)):  # NumPy and torch, whose text leaves out the middle of long arrays
            return _json_form(value.tolist(), depth + 1)
    return _as_text(value)


def _as_text(value: Any) -> str:
    try:
        return hex(value) if isinstance(value, int) and value.bit_length() >= _MAX_BITS else clean_text(str(value))
    except Exception as error:  # noqa: BLE001 - a user's class: its __str__ may raise anything
        return f"(the text of a {type(value).__name__} raised {type(error).__name__})"


def _are(kind: type, values: Sequence[Any]) -> bool:
    """Whether values are of one type, and none of a subclass: a flag is no plain integer."""
    return set(map(type, values)) <= {kind}


def _id(value: Any) -> str:
    """An id as it is, if every catalog has a form for it: Postgres has none for NUL, UTF-8 none for lone surrogates."""
    if not isinstance(value, str) or "\0" in value or clean_text(value) != value:
        raise ValueError
    return value


def _are_ids(values: Sequence[Any]) -> bool:
    return _are_texts(values) and not any("\0" in value for value in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return clean_text(value)


def _are_texts(values: Sequence[Any]) -> bool:
    if not _are(str, values):
        return False
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(value: Any) -> int:
    number = index(value)
    if number not in _INT32:
        raise ValueError
    return number


def _are_integers(values: Sequence[Any]) -> bool:
    return _are(int, values) and all(value in _INT32 for value in values)


def _number(value: Any) -> float:
    """A finite number: flags, NumPy scalars and 0-d arrays are numbers, texts and lists of one are not."""
    scalar = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(scalar, Real):
        raise TypeError
    try:
        number = float(scalar)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError
    return number


def _are_numbers(values: Sequence[Any]) -> bool:
    return _are(float, values) and all(map(math.isfinite, values))


def _parts(value: Any) -> list[tuple[str, float]]:
    if not isinstance(value, Mapping):
        raise TypeError
    return [(_id(name), _number(part)) for name, part in value.items()]


def _numbers(value: Any) -> list[float]:
    return [_number(entry) for entry in value]


def _info(value: Any) -> str:
    if not isinstance(value, Mapping):
        raise TypeError
    return jsonable(value.items())


def _integers(values: Sequence[Any]) -> bytes:
    return array("i", values).tobytes()


def _floats(values: Sequence[Any]) -> bytes:
    return array("f", values).tobytes()


def _likely(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    likely: npt.NDArray[np.bool_] = np.isfinite(values) & (values <= MAX_LOGPROB)
    return likely


_ID = Form(_id, "an id is text without NUL and lone surrogates", _are_ids)
_TEXT = Form(_text, "it is text", _are_texts)
_INTEGER = Form(_integer, "it is an integer of 32 bits", _are_integers)
_NUMBER = Form(_number, "it is a finite number", _are_numbers)
_LOGPROB = "a log-prob is finite and not above 0"

SCALARS: Mapping[str, Form] = {
    **dict.fromkeys(("experience_id", "group_id", "task_id", "lease_id", "explorer"), _ID),
    **dict.fromkeys(("attempt", "turn_index", "policy_version", "policy_version_end", "prompt_length"), _INTEGER),
    **dict.fromkeys(("temperature", "created_at"), _NUMBER),
    **dict.fromkeys(("prompt_text", "response_text"), _TEXT),
    "error": _TEXT.or_null(),
    "reward": Form(_number, "a reward is finite, or null while not known", _are_numbers).or_null(),
    "reward_parts": Form(_parts, "each part of a reward is a finite number by its name"),
    "turn_rewards": Form(_numbers, "the reward of a turn is a finite number"),
    "source": Form(lambda value: Source(value).value, f"a source is one of {', '.join(Source)}"),
    "stop_reason": Form(lambda value: StopReason(value).value, f"a stop reason is one of {', '.join(StopReason)}").or_null(),
    "info": Form(_info, "info is a mapping by names"),
}
"""The columns of one value a row, by name."""

PER_TOKEN: Mapping[str, TokenForm] = {
    "tokens": TokenForm(_integers, np.int32, lambda ids: ids >= 0, "a token id is an integer of 32 bits and not negative"),
    "action_mask": TokenForm(bytes, np.uint8, lambda flags: flags <= 1, "a mask is of plain flags"),
    "logprobs": TokenForm(_floats, np.float32, _likely, _LOGPROB),
    "teacher_logprobs": TokenForm(_floats, np.float32, _likely, _LOGPROB, optional=True),
}
"""The columns of one value a token, by name."""
