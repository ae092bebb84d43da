"""Rows of a run as a file or folder of their own: Parquet, JSONL, or a data set of the `datasets` package."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rft_core.buffer.query import Questions
from rft_core.buffer.values import no_form, plain_values
from rft_core.disk import folder_written_whole, make_folder, no_space, sync, temporary
from rft_core.errors import DataError, QueryError, UserError

EVERYTHING = "select * from experiences"
"""The question whose answer is every stored row."""

Form = Literal["parquet", "jsonl", "datasets"]
FORMS: tuple[Form, ...] = get_args(Form)

_JSON_COLUMN = "info"
"""The column of `experiences` that is JSON as text."""


def export_rows(questions: Questions, question: str, target: Path, form: Form) -> int:
    """Write the answer to a question to a new file or folder, whole or not at all; returns its number of rows.

    The answer passes through memory part by part. In `jsonl` maps and `info` are objects, and numbers that are not finite are
    null, and what JSON has no type for is its text; in `datasets` both are JSON features, which come back as objects.

    Args:
        questions: Over the table that is asked.
        question: In DuckDB's SQL.
        target: A file, or for `datasets` a folder, that is not there yet.
        form: What is written.

    Raises:
        UserError: The target is there already, or can't be written.
        QueryError: The question can't be answered, or a column of the answer has no such form.
        SegmentError: A file that holds rows of the answer is missing or damaged.
    """
    if target.exists():
        raise UserError(f"{target} is there already", "name a new one")
    columns, parts = questions.batches(question)
    try:
        return _WRITERS[form](target, columns, parts)
    except OSError as error:
        raise no_space(error, target.parent) from None


def _write_parquet(target: Path, columns: pa.Schema, parts: Iterator[pa.RecordBatch]) -> int:
    num_rows = 0
    part: pa.RecordBatch | None = None
    try:
        with _file_written_whole(target) as path, pq.ParquetWriter(path, columns, compression="zstd") as writer:
            for part in parts:
                writer.write_batch(part)
                num_rows += part.num_rows
    except pa.ArrowException as error:
        raise _not_parquet(columns, part, error) from None
    return num_rows


def _not_parquet(columns: pa.Schema, part: pa.RecordBatch | None, error: pa.ArrowException) -> QueryError:
    """Names the column that Parquet does not take: Arrow does not say which one it is."""
    for column in columns:
        try:
            with pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([column])) as writer:
                if part is not None:
                    writer.write_batch(part.select([column.name]))
        except pa.ArrowException as found:
            return no_form(column.name, column.type, found)
    return QueryError(f"Parquet does not take the answer ({error})", "ask for fewer columns")


def _write_jsonl(target: Path, columns: pa.Schema, parts: Iterator[pa.RecordBatch]) -> int:
    num_rows = 0
    keys = [_json(name) for name in columns.names]
    with _file_written_whole(target) as path, path.open("w", encoding="utf-8", newline="\n") as file:
        for part in parts:
            texts = [_json_texts(column, name) for column, name in zip(part.columns, columns.names, strict=True)]
            for row in zip(*texts, strict=True):
                file.write(f"{{{', '.join(f'{key}: {text}' for key, text in zip(keys, row, strict=True))}}}\n")
            num_rows += part.num_rows
    return num_rows


def _write_datasets(target: Path, columns: pa.Schema, parts: Iterator[pa.RecordBatch]) -> int:
    try:
        import datasets  # noqa: PLC0415 - the heavy half
    except ImportError as error:
        raise DataError(f"--as datasets needs the package `datasets` ({error})", "pip install datasets") from None
    schema = pa.schema([pa.field(column.name, pa.json_()) if _is_json(column) else column for column in columns])
    for column in schema:
        try:
            datasets.Features.from_arrow_schema(pa.schema([column]))
        except ValueError as error:
            raise no_form(column.name, column.type, error) from None
    make_folder(target.parent)
    streamed = Path(temporary(str(target.with_name(f".{target.name}.rows"))))
    try:
        with pa.OSFile(str(streamed), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            for part in parts:
                converted = [
                    _as_json(part.column(column.name), column.name) if _is_json(column) else part.column(column.name) for column in columns
                ]
                writer.write_batch(pa.record_batch(converted, schema=schema))
        found = datasets.Dataset.from_file(str(streamed))
        with folder_written_whole(target) as folder:
            found.save_to_disk(folder, num_shards=None if len(found) else 1)  # of no rows it would write no file, and not read that
        return len(found)
    finally:
        streamed.unlink(missing_ok=True)


_WRITERS: dict[Form, Callable[[Path, pa.Schema, Iterator[pa.RecordBatch]], int]] = {
    "parquet": _write_parquet,
    "jsonl": _write_jsonl,
    "datasets": _write_datasets,
}


@contextmanager
def _file_written_whole(path: Path) -> Iterator[Path]:
    """Write a file whole or not at all: fill the temporary file that this gives, leave, and it is at `path`."""
    make_folder(path.parent)
    unfinished = Path(temporary(str(path)))
    try:
        yield unfinished
        sync(unfinished)
        unfinished.rename(path)
    except BaseException:  # Ctrl-C too leaves nothing behind; it is raised again
        unfinished.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _is_json(column: pa.Field) -> bool:
    """Whether a column is written as JSON where a format has no maps; `info` is JSON already."""
    return _has_map(column.type) or (column.name == _JSON_COLUMN and pa.types.is_string(column.type))


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(index).type) for index in range(kind.num_fields))


def _as_json(column: pa.Array, name: str) -> pa.Array:
    texts = pa.array(_json_texts(column, name), pa.string())
    return pa.ExtensionArray.from_storage(pa.json_(), pc.if_else(column.is_null(), pa.scalar(None, pa.string()), texts))


def _json_texts(column: pa.Array, name: str) -> list[str]:
    """The JSON of each value of a column."""
    if pa.types.is_list(column.type) and _is_plain(column.type.value_type):
        return _lists_as_json(column)
    values = plain_values(column, name)
    if name == _JSON_COLUMN and pa.types.is_string(column.type):
        values = [None if value is None else _object(value) for value in values]
    return [_json(value) for value in values]


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _lists_as_json(column: pa.Array) -> list[str]:
    """Lists of numbers or flags as JSON, without a Python object for each: tokens are most of what a table holds."""
    flat = column.flatten()
    if pa.types.is_floating(flat.type):
        flat = pc.if_else(pc.is_finite(flat), flat, pa.scalar(None, flat.type))
    texts = pc.fill_null(flat.cast(pa.string()), "null")
    ends = np.concatenate([[0], np.cumsum(column.value_lengths().fill_null(0))])
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), texts), ", ").to_pylist()
    return ["null" if is_null else f"[{text}]" for text, is_null in zip(joined, column.is_null().to_pylist(), strict=True)]


def _object(text: str) -> Any:
    """What a text of JSON says; the text itself where it is none, since a question may call any column `info`."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(value: Any) -> Any:
    """What JSON has no type for. Sums of integers come from DuckDB as decimals."""
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain)


def _json(value: Any) -> str:
    """A value as JSON that every reader takes."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError):
        return _ENCODER.encode(_finite(value))


def _finite(value: Any) -> Any:
    """The same value with null in the place of numbers that are not finite, and with keys that JSON has."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key if isinstance(key, str | int) else str(_plain(key)): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
