"""Files in a folder of this machine, written whole: a temporary file, fsync, rename, fsync of the folder."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs

from rft_core.disk import write_whole
from rft_core.errors import UserError
from rft_core.storage.base import Stat, Storage


class LocalStorage(Storage):
    """A folder, which need not be there yet.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(str(root), renames=True)
        self._root = root

    def dataset_source(self) -> tuple[pafs.FileSystem, str]:
        """The local file system, and the absolute path of the folder."""
        return pafs.LocalFileSystem(), str(self._root.absolute())

    def _write(self, uri: str, data: memoryview) -> None:
        write_whole(self._root / uri, data)

    def _read(self, uri: str) -> pa.Buffer | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return pa.py_buffer((self._root / uri).read_bytes())
        return None

    def _size(self, uri: str) -> int | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            status = (self._root / uri).stat()
            return status.st_size if stat.S_ISREG(status.st_mode) else None
        return None

    def _delete(self, uri: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            (self._root / uri).unlink()

    def _list(self, folder: str) -> Iterator[tuple[str, Stat]]:
        for where, _, names in os.walk(self._root / folder, onerror=_unless_gone):
            for name in names:
                path = Path(where, name)
                with suppress(FileNotFoundError):  # renamed or deleted since the folder was read
                    status = path.stat()
                    if stat.S_ISREG(status.st_mode):
                        yield path.relative_to(self._root).as_posix(), Stat(status.st_size, status.st_mtime)

    def _problem(self, doing: str, uri: str, error: OSError) -> UserError:
        path = self._root / uri
        return UserError(f"can't {doing} {path} ({error.strerror or error})", "let this user do that, then run the same command again")


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
