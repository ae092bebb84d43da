"""A disk that is really full: a small one of its own where that may be mounted, a limit on the size of files elsewhere."""

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FREE_KB = 1000
"""What fits before there is room: a catalog does, so that the limit on files, which holds for all of them, can stand in."""


@dataclass
class FullDisk:
    """A folder in which no more than `FREE_KB` can be written, until there is room."""

    folder: Path
    message: str
    """What the system says of a write that does not fit."""
    limit: tuple[int, int] | None = None
    """The limits on the size of files before; null on a disk of its own."""

    def make_room(self) -> None:
        if self.limit is None:
            (self.folder / "ballast").unlink()
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.limit)


@contextmanager
def full_disk(folder: Path, size_kb: int = 16_000) -> Iterator[FullDisk]:
    """A folder, made here, on such a disk; `size_kb` fit once there is room."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "none", str(folder)]
    if subprocess.run(command, capture_output=True).returncode == 0:
        try:
            (folder / "ballast").write_bytes(b"\0" * 1024 * (size_kb - FREE_KB))
            yield FullDisk(folder, "No space left on device")
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * FREE_KB, limit[1]))
    try:
        yield FullDisk(folder, "File too large", limit)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
