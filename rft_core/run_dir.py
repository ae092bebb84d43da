"""Where everything of a run lives. No other module makes a path of a run."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from rft_core.disk import write_whole
from rft_core.errors import RunError

SEGMENTS, OVERLAYS, EVALUATIONS = "segments", "overlays", "evaluations"
"""Where the files of the experience table lie, within the run's folder or its object store."""

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

    @property
    def children(self) -> Path:
        """Logs and records of the processes that `rft run` started."""
        return self.root / "children"

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
            foreign = [entry.name for entry in self.root.iterdir() if not entry.name.startswith("run.json")]
            if foreign and not self.identity_file.exists():
                raise RunError(f"{self.root} holds {foreign[0]} but no run", "name an empty or a new folder")
            own = self.root / f"run.json.tmp-{uuid4().hex[:8]}"
            write_whole(own, json.dumps({"run_id": uuid4().hex, "format": FORMAT, "created_at": time.time()}))
            with suppress(FileExistsError):  # two processes may begin at once: one of them gives the id
                os.link(own, self.identity_file)
            own.unlink()
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
