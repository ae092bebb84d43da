"""Experiences as Arrow tables and Parquet files, and back: the one place where rows are checked."""

import json
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from operator import index
from reprlib import Repr
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rft_core.buffer.schema import EXPERIENCES
from rft_core.errors import SegmentError, TidemillError
from rft_core.types import Experience, Source, StopReason

MAX_LOGPROB = 1e-4
"""A log-prob is at most 0; rounding in the engine may lift it this far."""

ROWS_IN_GROUP = 4096
"""Rows of a Parquet row group: what a reader skips or takes as one, and what one thread decodes."""

# Measured on rows of 256 tokens, 192 of them sampled, in files of 64 to 10,000 rows: 1.6 to 1.3 kB a row, where Parquet's own choice,
# dictionaries, takes 2.1 to 1.5 kB. A higher level than 1 pays for texts alone.
_BYTE_STREAMS = ("tokens", "logprobs", "turn_rewards", "teacher_logprobs", "created_at")
_TEXTS = ("prompt_text", "response_text", "error", "info", "answer", "reason")
_STATISTICS = ("policy_version", "policy_version_end", "prompt_length", "temperature", "reward", "created_at", "shaped_reward")

_INT32 = range(-(2**31), 2**31)
_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, sort_keys=True)
_MAX_DEPTH = 50  # of `info`: far more than people nest, and less than what readers of JSON give up at
_MAX_BITS = 14_000  # of an integer in `info`: Python reads none of more than 4,300 digits

_brief = Repr()
_brief.maxstring = _brief.maxother = 80


def to_arrow(rows: Sequence[Experience]) -> pa.Table:
    """Rows as an Arrow table of the columns `EXPERIENCES`, checked.

    Flags and NumPy scalars become plain numbers, lone surrogates in texts become escapes, `info` becomes JSON.

    Raises:
        TidemillError: A row can't be right; says which one, and what was found: per-token lists of several lengths, a
            token id that is negative or no integer of 32 bits, a log-prob above 0 or not finite, a reward or a part of one
            that is no finite number, an id that is no text or has NUL or a lone surrogate, an experience that is there
            twice, or a value of another type than its column.
    """
    columns = {name: _scalars(rows, name, form) for name, form in _SCALARS.items()}
    ids = columns["experience_id"]
    if len(ids.unique()) < len(rows):
        twice = next(found["values"] for found in ids.value_counts().to_pylist() if found["counts"] > 1)
        raise TidemillError(f"experience {twice} is there twice in one append", "an id names one row")
    num_tokens = _lengths(rows, "tokens")
    columns |= {name: _per_token(rows, name, num_tokens) for name in _PER_TOKEN}
    return pa.table([columns[name] for name in EXPERIENCES.names], schema=EXPERIENCES)


def from_arrow(table: pa.Table) -> list[Experience]:
    """The rows of an Arrow table of the columns `EXPERIENCES`, as `to_arrow` or `schema.upgrade` made it.

    Raises:
        SegmentError: A value of `info` is no JSON.
    """
    columns = to_arrays(table)
    for field in EXPERIENCES:
        found = columns[field.name]
        if pa.types.is_list(field.type):
            columns[field.name] = [tuple(values.tolist()) for values in found]
        elif isinstance(found, np.ndarray):
            columns[field.name] = found.tolist()
    columns["reward"] = [None if math.isnan(value) else value for value in columns["reward"]]
    columns["created_at"] = [0.0 if math.isnan(value) else value for value in columns["created_at"]]
    columns["source"] = [Source.POLICY if value is None else Source(value) for value in columns["source"]]
    columns["stop_reason"] = [None if value is None else StopReason(value) for value in columns["stop_reason"]]
    return list(map(Experience, *(columns[name] for name in Experience.__slots__)))


def to_arrays(table: pa.Table) -> dict[str, Any]:
    """The rows of a table as arrays, without an object for each token.

    Args:
        table: Of all or some of the columns `EXPERIENCES`.

    Returns:
        By column, one entry a row. Lists of numbers: a list of NumPy arrays, which are read-only views into the table, empty
        where null. Numbers: one NumPy array, NaN where null. Texts: a list, None where null. `info` and `reward_parts`: a
        list of dicts, empty where null.

    Raises:
        SegmentError: A value of `info` is no JSON.
    """
    return {name: _decoded(name, table.column(name)) for name in table.schema.names}


def write_parquet(table: pa.Table) -> pa.Buffer:
    """A table of the buffer as the bytes of a Parquet file, for any reader of Parquet."""
    leaves = {field.name: f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name for field in table.schema}
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=ROWS_IN_GROUP,
        compression="zstd",
        compression_level={name: 3 for name in _TEXTS if name in leaves},
        use_dictionary=False,
        column_encoding={leaves[name]: "BYTE_STREAM_SPLIT" for name in _BYTE_STREAMS if name in leaves},
        write_statistics=[name for name in _STATISTICS if name in leaves],
        write_page_checksum=True,
    )
    return sink.getvalue()


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


def _scalars(rows: Sequence[Experience], name: str, form: "_Form") -> pa.Array:
    """One value a row, each in its stored form."""
    stored = []
    for position, row in enumerate(rows):
        value = getattr(row, name)
        try:
            stored.append(form.make(value))
        except (TypeError, ValueError):
            whose = f"row {position}" if name == "experience_id" else f"experience {row.experience_id}"
            raise TidemillError(f"{whose}: its {name} is {_brief.repr(value)}", form.right) from None
    return pa.array(stored, EXPERIENCES.field(name).type)


def _lengths(rows: Sequence[Experience], name: str) -> npt.NDArray[np.int64]:
    lists = [getattr(row, name) for row in rows]
    try:
        return np.fromiter(map(len, lists), np.int64, len(rows))
    except TypeError:
        at = next(at for at, values in enumerate(lists) if not hasattr(values, "__len__"))
        raise TidemillError(
            f"experience {rows[at].experience_id}: its {name} is {_brief.repr(lists[at])}", "it has one entry a token"
        ) from None


def _per_token(rows: Sequence[Experience], name: str, num_tokens: npt.NDArray[np.int64]) -> pa.Array:
    """One value a token, checked as one flat array: a loop over every token would take longer than all the rest.

    Args:
        rows: Whose.
        name: The column.
        num_tokens: How many tokens each row has.
    """
    form, lengths = _PER_TOKEN[name], _lengths(rows, name)
    wrong = (lengths != num_tokens) & ((lengths > 0) | (not form.optional))
    if wrong.any():
        at = int(wrong.argmax())
        found = f"experience {rows[at].experience_id}: {name} has {lengths[at]} entries for {num_tokens[at]} tokens"
        raise TidemillError(found, "it has one entry a token")
    try:
        flat = np.frombuffer(b"".join([form.pack(tuple(getattr(row, name))) for row in rows]), form.dtype)
    except (TypeError, ValueError, OverflowError):
        raise _unpackable(rows, name) from None
    ends, fits = np.cumsum(lengths), form.fits(flat)
    if not fits.all():
        position = int(fits.argmin())
        at = int(np.searchsorted(ends, position, side="right"))
        raise _unfit(rows[at], name, position - int(ends[at] - lengths[at]))
    kind = EXPERIENCES.field(name).type
    values = pa.array(flat.astype(bool) if pa.types.is_boolean(kind.value_type) else flat)
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends])).cast(pa.int32()), values, type=kind)


def _unpackable(rows: Sequence[Experience], name: str) -> TidemillError:
    """The error for the first value of a column that can't be packed."""
    for row in rows:
        for position, value in enumerate(getattr(row, name)):
            try:
                _PER_TOKEN[name].pack((value,))
            except (TypeError, ValueError, OverflowError):
                return _unfit(row, name, position)
    raise AssertionError(f"{name} as a whole can't be packed, and each value can")


def _unfit(row: Experience, name: str, position: int) -> TidemillError:
    found = _brief.repr(getattr(row, name)[position])
    return TidemillError(f"experience {row.experience_id}: {name}[{position}] is {found}", _PER_TOKEN[name].right)


def _decoded(name: str, column: pa.ChunkedArray) -> Any:
    if name == "info":
        return _from_json(column.to_pylist())
    if pa.types.is_map(column.type):
        return [dict(pairs or ()) for pairs in column.to_pylist()]
    if pa.types.is_list(column.type):
        return [view for chunk in column.chunks for view in _views(chunk)]
    return column.to_pylist() if pa.types.is_string(column.type) else column.to_numpy()


def _views(lists: pa.ListArray) -> list[npt.NDArray[Any]]:
    flat = lists.flatten().to_numpy(zero_copy_only=False)  # flags are bits in Arrow and bytes in NumPy: they alone are copied
    flat.flags.writeable = False
    ends = np.cumsum(lists.value_lengths().fill_null(0)).tolist()
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _from_json(texts: list[str | None]) -> list[dict[str, Any]]:
    """Decode all texts at once, which takes half the time; one by one only to name the one that can't be."""
    try:
        found: list[dict[str, Any]] = json.loads(f"[{','.join(text or '{}' for text in texts)}]")
    except json.JSONDecodeError:
        found = []
    return found if len(found) == len(texts) else [_info_of(row, text or "{}") for row, text in enumerate(texts)]


def _info_of(row: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SegmentError(f"the info of row {row} is no JSON: {error}", "restore the file from a copy") from None


def _id(value: Any) -> str:
    """An id as it is, if every catalog has a form for it: Postgres has none for NUL, UTF-8 none for lone surrogates."""
    if not isinstance(value, str) or "\0" in value or clean_text(value) != value:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return clean_text(value)


def _integer(value: Any) -> int:
    number = index(value)
    if number not in _INT32:
        raise ValueError
    return number


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


@dataclass(frozen=True, slots=True)
class _Form:
    """How a value is stored: `make` raises TypeError or ValueError where it can't be, `right` says what would be right."""

    make: Callable[[Any], Any]
    right: str

    def or_null(self) -> "_Form":
        return _Form(lambda value: None if value is None else self.make(value), self.right)


@dataclass(frozen=True, slots=True)
class _TokenForm:
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


def _integers(values: Sequence[Any]) -> bytes:
    return array("i", values).tobytes()


def _floats(values: Sequence[Any]) -> bytes:
    return array("f", values).tobytes()


def _likely(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    likely: npt.NDArray[np.bool_] = np.isfinite(values) & (values <= MAX_LOGPROB)
    return likely


_ID = _Form(_id, "an id is text without NUL and lone surrogates")
_TEXT = _Form(_text, "it is text")
_INTEGER = _Form(_integer, "it is an integer of 32 bits")
_NUMBER = _Form(_number, "it is a finite number")
_LOGPROB = "a log-prob is finite and not above 0"

_SCALARS: dict[str, _Form] = {
    **dict.fromkeys(("experience_id", "group_id", "task_id", "lease_id", "explorer"), _ID),
    **dict.fromkeys(("attempt", "turn_index", "policy_version", "policy_version_end", "prompt_length"), _INTEGER),
    **dict.fromkeys(("temperature", "created_at"), _NUMBER),
    **dict.fromkeys(("prompt_text", "response_text"), _TEXT),
    "error": _TEXT.or_null(),
    "reward": _Form(_number, "a reward is finite, or null while not known").or_null(),
    "reward_parts": _Form(_parts, "each part of a reward is a finite number by its name"),
    "turn_rewards": _Form(_numbers, "the reward of a turn is a finite number"),
    "source": _Form(lambda value: Source(value).value, f"a source is one of {', '.join(Source)}"),
    "stop_reason": _Form(lambda value: StopReason(value).value, f"a stop reason is one of {', '.join(StopReason)}").or_null(),
    "info": _Form(_info, "info is a mapping by names"),
}

_PER_TOKEN: dict[str, _TokenForm] = {
    "tokens": _TokenForm(_integers, np.int32, lambda ids: ids >= 0, "a token id is an integer of 32 bits and not negative"),
    "action_mask": _TokenForm(bytes, np.uint8, lambda flags: flags <= 1, "a mask is of plain flags"),
    "logprobs": _TokenForm(_floats, np.float32, _likely, _LOGPROB),
    "teacher_logprobs": _TokenForm(_floats, np.float32, _likely, _LOGPROB, optional=True),
}
