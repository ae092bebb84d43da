"""What every storage promises."""

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from rft_core.disk import is_temporary
from rft_core.errors import UserError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Stat:
    """What a storage knows of a file without reading it."""

    bytes: int
    modified_s: float
    """When it was written, in seconds since the epoch, by the clock of the storage."""


class Storage(ABC):
    """Immutable files in one place.

    A URI names a file relative to the place, with slashes, as in `segments/x.parquet`. A folder is a URI too, or empty for the whole place.

    Args:
        url: The place, as it is shown to people: without any secret.
        renames: Whether a file has a temporary name until it is whole. Object stores put one whole.
    """

    def __init__(self, url: str, renames: bool) -> None:
        self.url = url
        self._renames = renames

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def write(self, uri: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Write a file whole or not at all. Of two writers of one URI the last one stays.

        Raises:
            UserError: There is no space, no permission, or the storage does not answer.
        """
        self._check(uri)
        self._told("write", uri, lambda: self._write(uri, memoryview(data)))

    def read(self, uri: str) -> pa.Buffer:
        """Read a file whole.

        Raises:
            FileNotFoundError: It is not there.
            UserError: There is no permission, or the storage does not answer.
        """
        self._check(uri)
        data = self._told("read", uri, lambda: self._read(uri))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"{self.url}/{uri}")
        return data

    def size(self, uri: str) -> int | None:
        """How many bytes a file has; null if it is not there.

        Raises:
            UserError: There is no permission, or the storage does not answer.
        """
        self._check(uri)
        return self._told("look at", uri, lambda: self._size(uri))

    def delete(self, uri: str) -> None:
        """Delete a file; one that is not there is fine.

        Raises:
            UserError: There is no permission, or the storage does not answer.
        """
        self._check(uri)
        self._told("delete", uri, lambda: self._delete(uri))

    def files(self, folder: str = "") -> dict[str, Stat]:
        """Every whole file below a folder, by its URI; none if the folder is not there.

        Raises:
            UserError: There is no permission, or the storage does not answer.
        """
        return {uri: stat for uri, stat in self._listed(folder) if not is_temporary(uri)}

    def leftovers(self, folder: str = "") -> dict[str, Stat]:
        """The temporary files below a folder, by their URIs: of killed writers, and of those that write now.

        An object store has none, and is not asked.

        Raises:
            UserError: There is no permission, or the storage does not answer.
        """
        found = self._listed(folder, asked=self._renames)
        return {uri: stat for uri, stat in found if is_temporary(uri)}

    @abstractmethod
    def dataset_source(self) -> tuple[pafs.FileSystem, str]:
        """What `pyarrow.dataset` reads from: a file system, and the path in it that URIs are appended to, after a slash."""

    @abstractmethod
    def _write(self, uri: str, data: memoryview) -> None: ...

    @abstractmethod
    def _read(self, uri: str) -> pa.Buffer | None: ...

    @abstractmethod
    def _size(self, uri: str) -> int | None: ...

    @abstractmethod
    def _delete(self, uri: str) -> None: ...

    @abstractmethod
    def _list(self, folder: str) -> Iterable[tuple[str, Stat]]: ...

    @abstractmethod
    def _problem(self, doing: str, uri: str, error: OSError) -> UserError:
        """One line for something that could not be done."""

    def _listed(self, folder: str, asked: bool = True) -> list[tuple[str, Stat]]:
        if folder:
            self._check(folder)
        return self._told("list", folder, lambda: list(self._list(folder))) if asked else []

    def _told(self, doing: str, uri: str, action: Callable[[], _T]) -> _T:
        """Do it, and tell what went wrong in one line."""
        try:
            return action()
        except OSError as error:
            problem = self._problem(doing, uri, error)
        raise problem  # out here, so that the first error, which may show a secret, is not in the chain

    def _check(self, uri: str) -> None:
        if "\0" in uri or not {"", ".", ".."}.isdisjoint(uri.split("/")):
            raise UserError(f"{uri!r} does not name a file within {self.url}", "a URI is relative and clean, as in segments/x.parquet")


def joined(base: str, uri: str) -> str:
    """The path of a URI below a base path."""
    return f"{base}/{uri}" if uri else base
