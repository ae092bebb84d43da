"""The run that is tortured: where it is, the terms of its table, and the checkpoint that its trainer goes on from."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rft_core.buffer import ExperienceStore, Table, Terms, selectors
from rft_core.catalog import Catalog
from rft_core.disk import write_whole
from rft_core.run_dir import RunDir
from rft_core.storage import open_storage

PIPELINE = "doubled"
LEASE_S = 1.0
"""How long an explorer's leases last without a heartbeat: short, so that those of the killed are issued again within the run."""
TERMS = Terms(awaits_each=True, deadline_s=8.0, pipeline=PIPELINE, then="train_rest")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the run is; small enough to be handed to every process."""

    root: str
    url: str | None = None
    """Of the catalog's database; null for SQLite in the run's folder."""

    @property
    def run_dir(self) -> RunDir:
        return RunDir(Path(self.root))

    @property
    def checkpoint_file(self) -> Path:
        return self.run_dir.checkpoints / "newest.json"

    def open(self, writer: str) -> Table:
        """Open the table, as a process of this name; the run's folder has to be there."""
        catalog = Catalog(self.url or f"sqlite:///{self.run_dir.catalog_file}")
        storage = open_storage(self.run_dir.root)
        store = ExperienceStore(storage, catalog, replace(TERMS, writer=writer))
        return Table(catalog, storage, store, selectors.build("oldest_first", {}, "selection"))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a trainer goes on from: what it has learned so far, and what it needs to commit the last step of it again."""

    step: int = 0
    learned: str = ""
    """A digest over every batch so far, in order: it stands for the weights."""
    trained: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, place: Place) -> "Checkpoint":
        """The newest one; that of step 0 if there is none."""
        if not place.checkpoint_file.exists():
            return cls()
        found = json.loads(place.checkpoint_file.read_text())
        return cls(found["step"], found["learned"], tuple(found["trained"]), tuple((one[0], one[1]) for one in found["left_out"]))

    def write(self, place: Place) -> None:
        """Write it whole, in the place of the one before."""
        write_whole(place.checkpoint_file, json.dumps(asdict(self)))
