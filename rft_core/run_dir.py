"""Where everything of a run lives. No other module makes a path of a run."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from rft_core.errors import RunError, UserError

FORMAT = 1
"""The layout of a run directory; written into `run.json`."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's folder and the places in it."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def identity_file(self) -> Path:
        """`run.json`: the run's id and format. A folder is a run if it holds this."""
        return self.root / "run.json"

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.root / "recipe.yaml"

    @property
    def catalog_file(self) -> Path:
        return self.root / "catalog.db"

    @property
    def summary_file(self) -> Path:
        return self.root / "summary.json"

    @property
    def failure_file(self) -> Path:
        """Why the run ended before its last step, in one line; not there while it runs, and after it went on."""
        return self.root / "failure.txt"

    @property
    def lock_file(self) -> Path:
        """Held by the process that runs the loop."""
        return self.root / "run.lock"

    def segment(self, name: str) -> Path:
        return self.root / "segments" / name

    def overlay(self, name: str) -> Path:
        return self.root / "overlays" / name

    def evaluation(self, name: str) -> Path:
        return self.root / "evaluations" / name

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    def version(self, version: int) -> Path:
        """The folder of published weights, as in `weights/v000012`."""
        return self.weights / f"v{version:06d}"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{step:06d}"

    def relative(self, path: Path) -> str:
        """A URI of this run, as the catalog keeps it."""
        return path.relative_to(self.root).as_posix()

    def resolve(self, uri: str) -> Path:
        """The place that a URI of this run names."""
        return self.root / uri

    @property
    def run_id(self) -> str:
        """The id that tells this run from every other one, also from one of the same name."""
        return str(self._identity()["run_id"])

    def create(self) -> None:
        """Make the folder and give the run its id; does nothing if it is there.

        Raises:
            RunError: The folder can't be made, or holds something else, or a newer format.
        """
        if self.identity_file.exists():
            self._identity()
            return
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            foreign = [entry.name for entry in self.root.iterdir() if not entry.name.startswith(("run.json", "run.lock"))]
            if foreign:
                raise RunError(f"{self.root} holds {foreign[0]} but no run", "name an empty or a new folder")
            write_whole(self.identity_file, json.dumps({"run_id": uuid4().hex, "format": FORMAT, "created_at": time.time()}))
        except OSError as error:
            raise RunError(f"the run folder {self.root} can't be made ({error.strerror})", "name a folder that can") from None

    def _identity(self) -> dict[str, object]:
        try:
            identity = json.loads(self.identity_file.read_text())
        except (OSError, ValueError):
            identity = None
        if not isinstance(identity, dict) or "run_id" not in identity:
            raise RunError(f"{self.root} is not a run", "a run folder holds run.json; `rft show` lists the runs")
        if identity.get("format", 0) > FORMAT:
            raise RunError(f"{self.root} has format {identity['format']}, newer than this code's {FORMAT}", "upgrade tidemill")
        return identity


def find_run(name: str, runs_dir: Path = Path("runs")) -> RunDir:
    """A run by its name under `runs_dir`, or by a path.

    Raises:
        RunError: There is no such run.
    """
    for candidate in (Path(name), runs_dir / name):
        if (candidate / "run.json").exists():
            return RunDir(candidate)
    known = sorted(p.parent.name for p in runs_dir.glob("*/run.json"))
    raise RunError(f"there is no run {name} here or under {runs_dir}/", f"known runs: {', '.join(known) or 'none'}")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: a temporary file, fsync, rename.

    Raises:
        UserError: There is no space, or no permission; nothing is left.
    """
    temporary = path.with_name(f"{path.name}.tmp-{uuid4().hex[:8]}")
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise no_space(error, path.parent) from None


@contextmanager
def folder_written_whole(path: Path) -> Iterator[Path]:
    """Write a folder whole or not at all: fill the temporary folder that this gives, leave, and it is at `path`.

    If `path` is there already the new one replaces it. If the body raises, nothing is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp-{uuid4().hex[:8]}")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _sync(file)
        _sync(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if path.exists():
        shutil.rmtree(path)
    temporary.rename(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make a rename in this folder survive a power cut."""
    _sync(path)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed writers left. Only for the process that holds the run."""
    for leftover in folder.glob("*.tmp-*") if folder.exists() else ():
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def file_sha256(path: Path) -> str:
    """The hex SHA-256 of a file."""
    hasher = sha256()
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(1 << 22):
            hasher.update(chunk)
    return hasher.hexdigest()


def no_space(error: OSError, path: Path) -> UserError:
    """One line for a write that failed for want of space or permission."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
    return UserError(
        f"can't write below {path} ({error.strerror or error}), {shutil.disk_usage(there).free / 1e6:.0f} MB are free there",
        "make room, or let this user write there, then run the same command again",
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
