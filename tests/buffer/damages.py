"""What can happen to a file, and what is said of it."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq


def flip(path: Path) -> None:
    """One bit in the middle."""
    flip_at(path, path.stat().st_size // 2)


def flip_reward(path: Path) -> None:
    """One bit of a reward, whatever kind of file it is in."""
    columns = pq.ParquetFile(path).metadata.row_group(0)
    (column,) = (found for at in range(columns.num_columns) if (found := columns.column(at)).path_in_schema in ("reward", "shaped_reward"))
    flip_at(path, column.data_page_offset + column.total_compressed_size - 1)


def flip_at(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def rename(path: Path) -> None:
    """One bit of the footer, which carries no checksum: a column has another name now, and would be read as null."""
    content = path.read_bytes()
    flip_at(path, content.index(b"reward", footer(content)))


def footer(content: bytes) -> int:
    """Where the footer of a Parquet file begins."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace(path: Path) -> None:
    """Other bytes of the same length."""
    path.write_bytes(b"x" * path.stat().st_size)


def delete(path: Path) -> None:
    path.unlink()


Damage = Callable[[Path], None]
DAMAGES: list[Damage] = [flip, truncate, empty, delete]
"""Those that any file can suffer."""
_ALTERED = r"does not have the bytes that were written \(SHA-256 differs\)"
SAID: dict[Damage, str] = {
    flip_reward: _ALTERED,
    rename: _ALTERED,
    replace: _ALTERED,
    truncate: r"has \d+ bytes, \d+ were written",
    empty: r"has 0 bytes, \d+ were written",
    delete: "is missing",
}
"""The pattern of what is said of each."""
