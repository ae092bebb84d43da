"""Files in an object store, through Arrow where it speaks the store's language, through fsspec elsewhere."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from rft_core.disk import temporary
from rft_core.errors import UserError
from rft_core.storage.base import Stat, Storage, joined
from rft_core.storage.service import Service

_NOT_THERE = (FileNotFoundError, NotADirectoryError)


class RemoteStorage(Storage):
    """What object stores have in common.

    Args:
        service: Who answers.
        base: The path of the place in the store, as its client wants it.
        renames: Whether a file shows while it is being written, so that it needs another name until it is whole.
    """

    def __init__(self, service: Service, base: str, renames: bool = False) -> None:
        super().__init__(service.url, renames)
        self._service = service
        self._base = base

    def _path(self, uri: str) -> str:
        return joined(self._base, uri)

    def _uri(self, path: str) -> str:
        return path.removeprefix(f"{self._base}/")

    def _problem(self, doing: str, uri: str, error: OSError) -> UserError:
        return self._service.problem(doing, uri, error)


class ArrowStorage(RemoteStorage):
    """A prefix in an object store that Arrow knows; a write is one put, or one upload in parts that shows nothing before its end.

    Args:
        service: Who answers.
        base: Bucket and prefix.
        filesystem: The store.
    """

    def __init__(self, service: Service, base: str, filesystem: pafs.FileSystem) -> None:
        super().__init__(service, base)
        self._filesystem = filesystem

    def require_bucket(self) -> None:
        """Look whether the bucket is there and open to us, so that a mistake is told at once and not as a file that is not there.

        Raises:
            UserError: It is not there, does not let us in, or nobody answers.
        """
        if self._told("open", "", self._bucket_type) is pafs.FileType.NotFound:
            raise self._service.no_bucket()

    def dataset_source(self) -> tuple[pafs.FileSystem, str]:
        """The store, and bucket with prefix."""
        return self._filesystem, self._base

    def _bucket_type(self) -> Any:
        with suppress(PermissionError):  # Google keeps the right to look at a bucket apart from those to its objects: the first use tells
            return self._filesystem.get_file_info(self._base.partition("/")[0]).type
        return None

    def _write(self, uri: str, data: memoryview) -> None:
        stream = self._filesystem.open_output_stream(self._path(uri))
        try:
            stream.write(data)
        except BaseException:  # whatever ended it, Ctrl-C too; it is raised again
            # What was begun can't be given up: Arrow ends it, at the latest when the stream is destroyed, and so may put a torn object.
            # It is ended here, where other threads can go on meanwhile, and the torn object is deleted.
            with suppress(OSError):
                stream.close()
                if self._size(uri) not in (None, data.nbytes):
                    self._delete(uri)
            raise
        stream.close()

    def _read(self, uri: str) -> pa.Buffer | None:
        with suppress(FileNotFoundError), self._filesystem.open_input_file(self._path(uri)) as file:
            return file.read_buffer()
        return None

    def _size(self, uri: str) -> int | None:
        info = self._filesystem.get_file_info(self._path(uri))
        return int(info.size) if info.is_file else None

    def _delete(self, uri: str) -> None:
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._path(uri))

    def _list(self, folder: str) -> Iterator[tuple[str, Stat]]:
        below = pafs.FileSelector(self._path(folder), recursive=True, allow_not_found=True)
        for info in self._filesystem.get_file_info(below):
            if info.is_file:
                yield self._uri(info.path), Stat(info.size, info.mtime.timestamp())


class FsspecStorage(RemoteStorage):
    """A place that only fsspec knows.

    Args:
        service: Who answers.
        base: The path of the place.
        filesystem: An `fsspec.AbstractFileSystem`.
        renames: Whether a file shows while it is being written, so that it needs another name until it is whole.
    """

    def __init__(self, service: Service, base: str, filesystem: Any, renames: bool) -> None:
        super().__init__(service, base.rstrip("/"), renames)
        self._filesystem = filesystem

    def dataset_source(self) -> tuple[pafs.FileSystem, str]:
        """The file system behind Arrow's face, and the path of the place."""
        return pafs.PyFileSystem(pafs.FSSpecHandler(self._filesystem)), self._base

    def _write(self, uri: str, data: memoryview) -> None:
        path = self._path(uri)
        if not self._renames:
            self._filesystem.pipe_file(path, bytes(data))
            return
        unfinished = temporary(path)
        self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        try:
            self._filesystem.pipe_file(unfinished, bytes(data))
            self._filesystem.mv(unfinished, path)
        except BaseException:  # Ctrl-C too leaves nothing behind; it is raised again
            with suppress(OSError):
                self._filesystem.rm_file(unfinished)
            raise

    def _read(self, uri: str) -> pa.Buffer | None:
        with suppress(*_NOT_THERE):
            return pa.py_buffer(self._filesystem.cat_file(self._path(uri)))
        return None

    def _size(self, uri: str) -> int | None:
        self._filesystem.invalidate_cache()  # others write here too
        with suppress(*_NOT_THERE):
            info = self._filesystem.info(self._path(uri))
            return int(info["size"]) if info["type"] == "file" else None
        return None

    def _delete(self, uri: str) -> None:
        with suppress(*_NOT_THERE):
            self._filesystem.rm_file(self._path(uri))

    def _list(self, folder: str) -> Iterator[tuple[str, Stat]]:
        self._filesystem.invalidate_cache()
        for path, info in self._filesystem.find(self._path(folder), detail=True).items():
            with suppress(FileNotFoundError):  # renamed or deleted since
                yield self._uri(path), Stat(info["size"], self._filesystem.modified(path).timestamp())
