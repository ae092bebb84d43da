"""The columns of the table's files, and what becomes of those of another version."""

import pyarrow as pa
import pyarrow.compute as pc

from rft_core.errors import SegmentError

VERSION = 1
"""Of these columns; written into every segment."""


def _always(name: str, kind: pa.DataType) -> pa.Field:
    """A column that every version of the table has, without nulls; all others may be missing from an older one."""
    return pa.field(name, kind, nullable=False)


def _per_token(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))  # `element` is what Parquet calls it


EXPERIENCES = pa.schema(
    [
        _always("experience_id", pa.string()),
        _always("group_id", pa.string()),
        _always("task_id", pa.string()),
        _always("lease_id", pa.string()),
        _always("attempt", pa.int32()),
        _always("turn_index", pa.int32()),
        _always("explorer", pa.string()),
        _always("policy_version", pa.int32()),
        _always("policy_version_end", pa.int32()),
        _always("tokens", _per_token(pa.int32())),
        _always("action_mask", _per_token(pa.bool_())),
        _always("logprobs", _per_token(pa.float32())),
        _always("temperature", pa.float64()),
        _always("prompt_length", pa.int32()),
        _always("prompt_text", pa.string()),
        _always("response_text", pa.string()),
        ("reward", pa.float64()),
        ("stop_reason", pa.string()),
        ("reward_parts", pa.map_(pa.string(), pa.float64())),
        ("turn_rewards", pa.list_(pa.float64())),
        ("teacher_logprobs", pa.list_(pa.float32())),
        ("source", pa.string()),
        ("error", pa.string()),
        ("info", pa.string()),
        ("created_at", pa.float64()),
    ],
    metadata={"tidemill.schema": str(VERSION)},
)
"""One row an experience, by the names of the fields of `rft_core.types.Experience`; `info` is JSON."""

OVERLAY = pa.schema(
    [
        ("pipeline", pa.string()),
        ("experience_id", pa.string()),
        ("shaped_reward", pa.float64()),
        ("dropped_by", pa.string()),
        ("drop_reason", pa.string()),
    ]
)
"""What a pipeline of operators made of each experience."""

EVALUATION = pa.schema(
    [
        ("version", pa.int32()),
        ("task_id", pa.string()),
        ("prompt_text", pa.string()),
        ("response_text", pa.string()),
        ("answer", pa.string()),
        ("reward", pa.float64()),
        ("exact", pa.bool_()),
        ("reason", pa.string()),
        ("error", pa.string()),
    ]
)
"""One scored answer to a held-out task."""


def check_version(schema: pa.Schema, where: str) -> None:
    """Refuse columns that this code does not know; those of older versions are known, see `upgrade`.

    Args:
        schema: Of the file that was read.
        where: Names the file in the error.

    Raises:
        SegmentError: A newer version of Tidemill wrote the file, or none did.
    """
    found = (schema.metadata or {}).get(b"tidemill.schema", b"").decode("utf-8", "backslashreplace")
    if not found.isdecimal():
        said = f"says {found!r} as" if found else "has no"
        raise SegmentError(
            f"{where} is not a segment of Tidemill: its metadata {said} `tidemill.schema`", "each segment has its version there"
        )
    if int(found) > VERSION:
        raise SegmentError(f"{where} has columns of version {found}, this code has {VERSION}", "upgrade tidemill")


def upgrade(table: pa.Table, where: str = "the table") -> pa.Table:
    """Bring a table of this version or an older one to the columns of `EXPERIENCES`, in their order and types.

    A column that its version did not have yet is null; one that `EXPERIENCES` does not have any more is left out.

    Args:
        table: What was read.
        where: Names its file in errors.

    Raises:
        SegmentError: A column that every version has is missing or has a null, a text is not UTF-8, or a value does not
            fit the type of its column; names the column, and the row where there is one.
    """
    check_text(table, where)
    return pa.table([_upgraded(table, field, where) for field in EXPERIENCES], schema=EXPERIENCES)


def check_text(table: pa.Table, where: str) -> None:
    """Refuse bytes that are not UTF-8: files and DuckDB pass on what another program wrote, and Python fails only when it is shown.

    Args:
        table: Any table that was read.
        where: Names its file in the error.

    Raises:
        SegmentError: Names the column, the row and the bytes.
    """
    for name in table.schema.names:
        try:
            table.column(name).validate(full=True)
        except pa.ArrowInvalid as error:
            raise SegmentError(
                f"{where}, column {name}{_first_unreadable(table.column(name), error)}", "restore the file from a copy"
            ) from None


def _upgraded(table: pa.Table, field: pa.Field, where: str) -> pa.Array | pa.ChunkedArray:
    if field.name not in table.schema.names:
        if not field.nullable:
            raise SegmentError(f"{where} has no column {field.name}", "every version of the table has it; restore the file from a copy")
        return pa.nulls(table.num_rows, field.type)
    column, named = table.column(field.name), f"{where}, column {field.name}"
    if not field.nullable and column.null_count:
        raise SegmentError(f"{named}, row {pc.index(column.is_null(), True).as_py()} is null", "no row may be without it")
    try:
        column = column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise SegmentError(f"{named} is {column.type}: {reason}", f"this version has {field.type} there") from None
    if pa.types.is_list(field.type) and not field.type.value_field.nullable and any(chunk.flatten().null_count for chunk in column.chunks):
        raise SegmentError(f"{named} has a null among the values of a row", "each token has one")
    return column


def _first_unreadable(column: pa.ChunkedArray, error: pa.ArrowInvalid) -> str:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        for row, value in enumerate(column.cast(pa.large_binary()).to_pylist()):
            if value is not None and value.decode("utf-8", "ignore").encode() != value:
                return f", row {row} is not UTF-8: {value[:80]!r}"
    return f" can't be read: {error}"
