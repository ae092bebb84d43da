"""Rows in files: JSON lines and Parquet."""

import json
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from rft_core.disk import file_sha256
from rft_core.errors import DataError
from rft_core.taskset.rows import one_line


class Rows(Protocol):
    """Rows by their index, however they are kept."""

    content: str
    """A digest of the rows and of their order in the source."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...


class JsonRows:
    """A file with one JSON object a line; blank lines don't count. Rows need not have the same fields.

    Raises:
        DataError: A line is not a JSON object; names the line.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        with path.open("rb") as file:
            lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
            self._rows = [_json_object(path, number, line) for number, line in islice(lines, limit)]
        self.content = file_sha256(path)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


class ArrowRows:
    """The rows of an Arrow table; a row is decoded when it is asked for.

    Args:
        source: How messages call it.
        table: The rows.
        content: A digest of them.
        limit: Use only the first ones.
    """

    def __init__(self, source: str, table: pa.Table, content: str, limit: int | None) -> None:
        self._source = source
        self._table = table if limit is None else table.slice(0, limit)
        self.content = content

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            return dict(self._table.slice(index, 1).to_pylist()[0])
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self._source} row {index + 1} holds text that is not UTF-8 ({error})", "repair the row or leave it out"
            ) from None


def file_rows(path: Path, limit: int | None) -> Rows:
    """The rows of a `.jsonl` or `.parquet` file.

    Raises:
        DataError: It is neither, not there, or can't be read.
    """
    if path.suffix not in (".jsonl", ".parquet"):
        raise DataError(f"no task set is called {path}", "name a .jsonl or .parquet file, hf:ID or reasoning-gym:NAME")
    if not path.is_file():
        raise DataError(f"there is no file {path}", "paths are relative to the folder in which the run is started")
    try:
        if path.suffix == ".jsonl":
            return JsonRows(path, limit)
        return ArrowRows(str(path), pq.read_table(path), file_sha256(path), limit)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} can't be read ({one_line(error)})", f"it must be a {path.suffix} file that this user may read") from None


def _json_object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} line {number} is not JSON ({one_line(error)})", "each line is one JSON object, in UTF-8") from None
    if not isinstance(row, dict):
        raise DataError(
            f"{path} line {number} is a {type(row).__name__}", 'each line is one JSON object, as in {"prompt": "...", "answer": "..."}'
        )
    return row
