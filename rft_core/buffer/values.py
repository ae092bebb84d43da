"""The values of an answer, as Python has them."""

from typing import Any

import pyarrow as pa

from rft_core.errors import QueryError


def plain_rows(answer: pa.Table) -> list[dict[str, Any]]:
    """An answer as Python has it, row by row; maps are dicts.

    Raises:
        QueryError: Python has no such value; names the column.
    """
    columns = [plain_values(column, name) for name, column in zip(answer.column_names, answer.columns, strict=True)]
    return [dict(zip(answer.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def plain_values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """The values of a column as Python has them; maps are dicts.

    Raises:
        QueryError: Python has no such value; names the column.
    """
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise no_form(name, column.type, error) from None
    return values


def no_form(name: str, kind: pa.DataType, error: Exception) -> QueryError:
    """The error for a column that can't be shown, or written in the form that is wanted."""
    why = " ".join(str(error).split())
    return QueryError(f"the column {name} has no such form: it is {kind} ({why})", "make it a text, as in `x::varchar as x`")
