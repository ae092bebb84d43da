"""Immutable Parquet files: written whole or not at all, verified when they are read."""

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from rft_core.buffer import schema
from rft_core.buffer.rows import write_parquet
from rft_core.catalog import Catalog, StoredFile
from rft_core.errors import SegmentError
from rft_core.failpoints import failpoint
from rft_core.storage import Storage

MISSING = "is missing"
"""What is wrong with a file that is not there."""

THREADED_BYTES = 4_000_000
"""Of a smaller file the columns are decoded one after the other: threads would cost more than they save."""


def unique_name(key: str) -> str:
    """A file name that no other try at the same key has."""
    return f"{key}-{uuid4().hex[:8]}.parquet"


def write(storage: Storage, uri: str, table: pa.Table, point: str) -> StoredFile:
    """Write a table to a new file of the run.

    Args:
        storage: Where the run's files are.
        uri: Of the file; one that was not used before.
        table: What.
        point: The failpoint to pass when the file is there.

    Raises:
        UserError: There is no space or no permission, or the object store can't be reached.
    """
    content = write_parquet(table)
    storage.write(uri, content)
    failpoint(point)
    return StoredFile(uri, table.num_rows, content.size, sha256(content).hexdigest())


def read(storage: Storage, file: StoredFile) -> pa.Table:
    """Read a file of the run back.

    Raises:
        SegmentError: It is missing, torn or altered; names it.
    """
    try:
        content = storage.read(file.uri)
    except FileNotFoundError:
        raise missing(storage, file.uri) from None
    problem = damage(content, file)
    if not problem:
        try:
            return pq.ParquetFile(pa.BufferReader(content)).read(use_threads=content.size > THREADED_BYTES)
        except (pa.ArrowException, OSError) as error:  # Arrow's own errors of a torn file are both
            problem = unreadable(error)
    raise SegmentError(f"{file.uri} of {storage.url} {problem}", "restore it from a copy; `rft fsck` lists all that is damaged")


def read_segment(storage: Storage, file: StoredFile) -> pa.Table:
    """Read a segment back, as a table of the columns `schema.EXPERIENCES`.

    Raises:
        SegmentError: It is missing, torn or altered, or a newer version of Tidemill wrote it; names it.
    """
    return segments_as_one([file], [read(storage, file)])


def segments_as_one(stored: Sequence[StoredFile], tables: Sequence[pa.Table]) -> pa.Table:
    """Segments that were read, one after the other, as a table of the columns `schema.EXPERIENCES`.

    Raises:
        SegmentError: One is not what Tidemill writes, or a newer version wrote it; names it.
    """
    for file, table in zip(stored, tables, strict=True):
        schema.check_version(table.schema, file.uri)
    if all(table.schema == tables[0].schema for table in tables):
        with suppress(SegmentError):  # many small files take long one by one, which is left for naming the odd one
            return schema.upgrade(pa.concat_tables(tables))
    return pa.concat_tables([schema.upgrade(table, file.uri) for file, table in zip(stored, tables, strict=True)])


def missing(storage: Storage, uri: str) -> SegmentError:
    """The error for a file that is not there."""
    return SegmentError(f"{uri} of {storage.url} {MISSING}", "the catalog holds it as written: restore it from a copy")


def unreadable(error: Exception) -> str:
    """What is wrong with a file that Arrow can't make a table of."""
    return f"can't be read ({(str(error) or type(error).__name__).splitlines()[0]})"


def other_size(found: int, file: StoredFile) -> str:
    """What is wrong with a file that has another size than it was written with."""
    return f"has {found} bytes, {file.bytes} were written"


def damage(content: pa.Buffer, file: StoredFile) -> str | None:
    """What is wrong with the bytes of a file; null if they are those that were written."""
    if file.bytes and content.size != file.bytes:
        return other_size(content.size, file)
    if file.sha256 and sha256(content).hexdigest() != file.sha256:
        return "does not have the bytes that were written (SHA-256 differs)"
    return None


def num_deleted(catalog: Catalog, at: int, pipeline: str | None = None) -> int:
    """How many files of an earlier state of the table were deleted, since nothing needed that state any more.

    Args:
        catalog: The catalog.
        at: Sequence number of the state.
        pipeline: Count the overlays of this pipeline; segments if left out.
    """
    columns, found = catalog.relation("segments" if pipeline is None else "overlays")
    ended = [row for values in found if (row := dict(zip(columns, values, strict=True)))["collected_at"] is not None]
    return sum(row["sequence"] <= at < row["ended"] and row.get("pipeline") == pipeline for row in ended)
