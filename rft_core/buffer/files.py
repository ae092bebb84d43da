"""Immutable Parquet files: written whole or not at all, verified when they are read."""

from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from rft_core.catalog import StoredFile
from rft_core.errors import SegmentError
from rft_core.failpoints import failpoint
from rft_core.run_dir import RunDir, file_sha256, write_whole


def unique_name(key: str) -> str:
    """A file name that no other try at the same key has."""
    return f"{key}-{uuid4().hex[:8]}.parquet"


def write(run_dir: RunDir, path: Path, table: pa.Table, point: str) -> StoredFile:
    """Write a table to a new file of the run.

    Args:
        run_dir: Whose file it is.
        path: Where; a name that was not used before.
        table: What.
        point: The failpoint to pass when the file is there.

    Raises:
        UserError: There is no space or no permission.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    write_whole(path, sink.getvalue().to_pybytes())
    failpoint(point)
    return StoredFile(run_dir.relative(path), table.num_rows, file_sha256(path))


def read(run_dir: RunDir, file: StoredFile) -> pa.Table:
    """Read a file of the run back.

    Raises:
        SegmentError: It is missing, torn or altered; names it.
    """
    path = run_dir.resolve(file.uri)
    if not path.exists():
        raise SegmentError(f"{path} is missing", "the catalog holds it as written; restore it from a copy")
    if file_sha256(path) != file.sha256:
        raise SegmentError(f"{path} does not have the bytes that were written (SHA-256 differs)", "restore it from a copy")
    return pq.read_table(path)
