"""Experiences as Arrow tables and Parquet files, and back: the one place where rows are checked."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from reprlib import Repr
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rft_core.buffer.forms import PER_TOKEN, SCALARS
from rft_core.buffer.schema import EXPERIENCES
from rft_core.errors import SegmentError, TidemillError
from rft_core.types import Experience, Source, StopReason

ROWS_IN_GROUP = 4096
"""Rows of a Parquet row group: what a reader skips or takes as one, and what one thread decodes."""

# Measured on rows of 256 tokens, 192 of them sampled, in files of 64 to 10,000 rows: 1.6 to 1.3 kB a row, where Parquet's own choice,
# dictionaries, takes 2.1 to 1.5 kB. A higher level than 1 pays for texts alone.
_BYTE_STREAMS = ("tokens", "logprobs", "turn_rewards", "teacher_logprobs", "created_at")
_TEXTS = ("prompt_text", "response_text", "error", "info", "answer", "reason")
_STATISTICS = ("policy_version", "policy_version_end", "prompt_length", "temperature", "reward", "created_at", "shaped_reward")

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
    columns = {name: _scalars(rows, name) for name in SCALARS}
    ids = columns["experience_id"]
    if len(ids.unique()) < len(rows):
        twice = next(found["values"] for found in ids.value_counts().to_pylist() if found["counts"] > 1)
        raise TidemillError(f"experience {twice} is there twice in one append", "an id names one row")
    num_tokens = _lengths(rows, "tokens")
    columns |= {name: _per_token(rows, name, num_tokens) for name in PER_TOKEN}
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


def _scalars(rows: Sequence[Experience], name: str) -> pa.Array:
    """One value a row, each in its stored form."""
    values = [getattr(row, name) for row in rows]
    try:
        stored = SCALARS[name].stored(values)
    except (TypeError, ValueError):
        raise _without_form(rows, name) from None
    return pa.array(stored, EXPERIENCES.field(name).type)


def _without_form(rows: Sequence[Experience], name: str) -> TidemillError:
    """The error for the first row whose value has no stored form."""
    for position, row in enumerate(rows):
        value = getattr(row, name)
        try:
            SCALARS[name].make(value)
        except (TypeError, ValueError):
            whose = f"row {position}" if name == "experience_id" else f"experience {row.experience_id}"
            return TidemillError(f"{whose}: its {name} is {_brief.repr(value)}", SCALARS[name].right)
    raise AssertionError(f"the values of {name} as a whole have no form, and each one has")


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
    form, lengths = PER_TOKEN[name], _lengths(rows, name)
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
                PER_TOKEN[name].pack((value,))
            except (TypeError, ValueError, OverflowError):
                return _unfit(row, name, position)
    raise AssertionError(f"{name} as a whole can't be packed, and each value can")


def _unfit(row: Experience, name: str, position: int) -> TidemillError:
    found = _brief.repr(getattr(row, name)[position])
    return TidemillError(f"experience {row.experience_id}: {name}[{position}] is {found}", PER_TOKEN[name].right)


def _decoded(name: str, column: pa.ChunkedArray) -> Any:
    if name == "info":
        return _from_json(column.to_pylist())
    if pa.types.is_map(column.type):
        return [dict(pairs or ()) for pairs in column.to_pylist()]
    if pa.types.is_list(column.type):
        return [view for chunk in column.chunks for view in _views(chunk)]
    return column.to_pylist() if pa.types.is_string(column.type) else column.to_numpy()


def _views(lists: pa.ListArray) -> list[npt.NDArray[Any]]:
    if lists.null_count:
        lists = lists.fill_null([])
    flat = lists.values.to_numpy(zero_copy_only=False)  # flags are bits in Arrow and bytes in NumPy: they alone are copied
    flat.flags.writeable = False
    return [flat[start:end] for start, end in pairwise(lists.offsets.to_pylist())]


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
