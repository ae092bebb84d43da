"""Writing to a disk of this machine: whole or not at all, and so that it survives a power cut."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from rft_core.errors import UserError

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]{8}(/|$)")


def write_whole(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file whole or not at all: a temporary file, fsync, rename. Folders above it are made.

    Raises:
        UserError: There is no space, or no permission; nothing is left.
    """
    data = content.encode() if isinstance(content, str) else content
    unfinished = Path(temporary(str(path)))
    try:
        make_folder(path.parent)
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
        sync(path.parent)
    except BaseException as error:  # Ctrl-C too leaves nothing behind; it is raised again
        with suppress(OSError):
            unfinished.unlink()
        if isinstance(error, OSError):
            raise no_space(error, path.parent) from None
        raise


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Write a folder whole or not at all: fill the temporary folder that this gives, leave, and it is at `path`.

    If `path` is there already the new one replaces it. If the body raises, nothing is left.
    """
    with temporary_folder(path) as unfinished:
        yield unfinished
        for file in unfinished.rglob("*"):
            sync(file)
        sync(unfinished)
        if path.exists():
            shutil.rmtree(path)
        unfinished.rename(path)
    sync(path.parent)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path`, under a temporary name, for as long as the block lasts. Folders above it are made."""
    make_folder(path.parent)
    folder = Path(temporary(str(path.with_name(f".{path.name}"))))
    folder.mkdir()
    try:
        yield folder
    finally:
        discard(folder)


def temporary(name: str) -> str:
    """A name, of its own, for what is to be renamed to another one when it is whole."""
    return f"{name}.tmp-{uuid4().hex[:8]}"


def is_temporary(name: str) -> bool:
    """Whether `temporary` made the name, or that of a folder in it."""
    return _TEMPORARY.search(name) is not None


def leftovers(folder: Path) -> list[Path]:
    """The temporary files and folders in a folder: of killed writers, and of those that write now."""
    return sorted(path for path in folder.iterdir() if is_temporary(path.name)) if folder.is_dir() else []


def discard(path: Path) -> None:
    """Remove a file or folder as far as that is possible; one that is not there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed writers left. Only for the process that holds the run."""
    for leftover in leftovers(folder):
        discard(leftover)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, each of which survives a power cut."""
    if os.path.lexists(folder):
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)  # another writer may have made it just now
    sync(folder.parent)


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """The hex SHA-256 of a file."""
    hasher = sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 22):
            hasher.update(chunk)
    return hasher.hexdigest()


def no_space(error: OSError, path: Path) -> UserError:
    """One line for a write below a folder that failed for want of space or permission."""
    # os.path.isdir, since Path.is_dir raises below a folder that this user may not enter
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.isdir(folder))  # noqa: PTH112
    return UserError(
        f"can't write below {path} ({error.strerror or error}), {shutil.disk_usage(there).free / 1e6:.0f} MB are free there",
        "make room, or let this user write there, then run the same command again",
    )
