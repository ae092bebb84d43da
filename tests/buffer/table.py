"""A run's table, and rows to put into it."""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rft_core.buffer import ExperienceStore, Questions, Selector, Shaped, StoredGroup, Terms, Wanted, chooser, selectors
from rft_core.buffer.labelling import Labelled, apply_labels
from rft_core.buffer.labels import LabelLine
from rft_core.buffer.opening import Table as OpenTable
from rft_core.catalog import Catalog, Choice, Claim, Lease, StepRow
from rft_core.catalog.candidates import Candidates
from rft_core.processes import Process
from rft_core.run_dir import RunDir
from rft_core.storage import open_storage
from rft_core.types import Experience, StopReason, digest


class Table:
    """A run directory with catalog and store, as the explorer and the trainer hold it."""

    def __init__(self, root: Path, url: str | None = None, files: str | None = None, options: Mapping[str, str] = {}, **terms: Any) -> None:
        self.run_dir = RunDir(root)
        self.run_dir.create()
        self.url = url or f"sqlite:///{self.run_dir.catalog_file}"
        if url is None and not self.run_dir.catalog_file.exists():
            self.run_dir.catalog_file.write_bytes(_empty_catalog())
        self.catalog = Catalog(self.url)
        self.storage = open_storage(files or root, options)
        self.store = ExperienceStore(self.storage, self.catalog, Terms(**terms))

    @property
    def open(self) -> OpenTable:
        """As the commands open it."""
        return OpenTable(self.catalog, self.storage, self.store, selectors.build("oldest_first", {}, "selection"))

    def take_over(self, name: str = "trainer") -> int:
        """Become the trainer, from a process that nobody can see."""
        return self.catalog.trainers.take_over(Process(name, f"elsewhere|{name}|1"))

    def claim(self, step: int, generation: int, count: int = 100, version: int | None = None, max_staleness: int = 100) -> Claim:
        """Claim the oldest groups."""

        def oldest(candidates: Candidates) -> Choice:
            return Choice(list(islice(candidates.by("oldest"), count)))

        start = step - 1 if version is None else version
        return self.catalog.claims.make(step, oldest, start, max_staleness, self.store.terms.pipeline, generation)

    def choose(self, step: int, selector: Selector, generation: int, where: str | None = None, **how: Any) -> Claim:
        """Claim a batch as the trainer does.

        Args:
            step: The step.
            selector: Chooses.
            generation: Of the trainer.
            where: A condition.
            how: `count` of groups, `version`, `max_staleness`, `skip_short`.
        """
        matching = None if where is None else Questions(self.storage, self.catalog, self.store.terms.pipeline).groups_where(where)
        choose = chooser(selector, Wanted(step, how.get("count", 100)), matching, how.get("skip_short", False))
        version, staleness = how.get("version", step - 1), how.get("max_staleness", 100)
        return self.catalog.claims.make(step, choose, version, staleness, self.store.terms.pipeline, generation)

    def commit(self, claim: Claim, generation: int) -> None:
        """Commit the step of a claim, as trained on all of it."""
        row = StepRow(claim.step, "trained", claim.step, {}, None, 1.0, 0.0)
        self.catalog.claims.commit_step(row, claim.group_ids, {}, generation)

    def shape(self, factor: float = 1.0, drop: Collection[str] = ()) -> int:
        """Shape all groups that wait for it; returns how many overlays that took.

        Args:
            factor: By which rewards are multiplied.
            drop: Ids of groups of which nothing is left.
        """
        waiting = self.catalog.segments.to_shape()
        for segment, group_ids in waiting.items():
            shaped = {group.group_id: self._shaped(group, factor, group.group_id in drop) for group in self.store.groups(group_ids)}
            dropped = {group_id: "op: why" for group_id in group_ids if group_id in drop}
            self.store.overlay(segment, shaped, [{"name": "op"}], dropped)
        return len(waiting)

    def _shaped(self, group: StoredGroup, factor: float, is_dropped: bool) -> list[Shaped]:
        rewards = [(row, group.reward_of(attempt)) for attempt in group.attempts() for row in attempt]
        why = ("op", "why") if is_dropped else (None, None)
        return [Shaped(row.experience_id, None if reward is None else reward * factor, *why) for row, reward in rewards]

    def label(self, said: Mapping[str, float], author: str = "ada", field: str = "reward", key: str = "") -> Labelled:
        """Apply labels: a value by experience id."""
        name = key or f"{author}-{field}-{sorted(said.items())}"
        items = enumerate(said.items(), start=1)
        return apply_labels(self.open, [LabelLine(number, f"{name}-{number}", id_, value, author, field) for number, (id_, value) in items])

    def count(self, relation: str) -> int:
        return len(self.catalog.relation(relation)[1])

    def lease(self, fresh: int = 1, step: int = 1) -> list[Lease]:
        return self.catalog.leases.issue(step, fresh, "explorer", lambda position: f"task-{position}", None)

    def append(self, key: str, leases: Sequence[Lease], rewards: Sequence[float | None] = (1.0, 0.0), **changes: Any) -> list[Experience]:
        """Append a group for each lease, an attempt for each reward."""
        rows = [row(lease, attempt, reward=reward, **changes) for lease in leases for attempt, reward in enumerate(rewards)]
        self.store.append(key, rows, "explorer", leases[0].step)
        return rows

    def segment_file(self, key: str) -> Path:
        found = self.catalog.segments.find(key)
        assert found is not None
        return self.run_dir.resolve(found.uri)

    def ask(self, question: str, pipeline: str = "p", at: int | None = None) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = Questions(self.storage, self.catalog, pipeline, at=at).ask(question).to_pylist()
        return answer

    def look(self, question: str) -> list[dict[str, Any]]:
        """Ask the catalog alone, in its own SQL: much quicker than DuckDB."""
        with self.catalog._database.read() as connection:
            return [dict(found) for found in connection.exec_driver_sql(question).mappings()]

    def files(self, folder: str) -> set[str]:
        """What lies in a folder of the run, as URIs."""
        place = self.run_dir.root / folder
        return {f"{folder}/{path.name}" for path in place.iterdir()} if place.exists() else set()

    def close(self) -> None:
        self.catalog.close()


@cache
def _empty_catalog() -> bytes:
    """A catalog that is made once: its tables take longer to make than most tests to run."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "catalog.db"
        Catalog(f"sqlite:///{file}").close()
        return file.read_bytes()


def row(lease: Lease, attempt: int = 0, turn_index: int = 0, **changes: Any) -> Experience:
    """A row of three prompt tokens and two sampled ones."""
    group_id = digest("group", lease.lease_id)
    values: dict[str, Any] = {
        "experience_id": digest("experience", group_id, attempt, turn_index),
        "group_id": group_id,
        "task_id": lease.task_id,
        "lease_id": lease.lease_id,
        "attempt": attempt,
        "turn_index": turn_index,
        "explorer": "explorer",
        "policy_version": 0,
        "policy_version_end": 0,
        "tokens": (5, 6, 7, 8, 9),
        "action_mask": (False, False, False, True, True),
        "logprobs": (0.0, 0.0, 0.0, -0.5, -1.25),
        "temperature": 0.7,
        "prompt_length": 3,
        "prompt_text": "1+1=",
        "response_text": "2",
        "reward": 1.0,
        "stop_reason": StopReason.EOS,
        "reward_parts": {"exact": 1.0, "format": 0.5},
        "info": {"reason": "equal", "nested": [1, {"a": None}]},
        "created_at": 1234.5,
    }
    return Experience(**{**values, **changes})


def append_each(table: Table, key: str, rewards: Sequence[Sequence[float | None]], step: int = 1, **changes: Any) -> list[Lease]:
    """Append a segment with a group for each list of rewards, an attempt for each of them."""
    leases = table.lease(len(rewards), step)
    rows = [
        row(lease, attempt, reward=reward, **changes)
        for lease, of_group in zip(leases, rewards, strict=True)
        for attempt, reward in enumerate(of_group)
    ]
    table.store.append(key, rows, "explorer", step)
    return leases


def append_varied(table: Table, key: str, changes: Sequence[Mapping[str, Any]], step: int = 1) -> list[Lease]:
    """Append a segment with a group of two attempts for each set of changes to their rows."""
    leases = table.lease(len(changes), step)
    rows = [
        row(lease, attempt, **{"reward": 1.0 - attempt, **changed})
        for lease, changed in zip(leases, changes, strict=True)
        for attempt in range(2)
    ]
    table.store.append(key, rows, "explorer", step)
    return leases


def group_id(lease: Lease) -> str:
    return digest("group", lease.lease_id)
