"""A run's table, and rows to put into it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rft_core.buffer import ExperienceStore, Questions
from rft_core.catalog import Catalog, Lease
from rft_core.run_dir import RunDir
from rft_core.types import Experience, StopReason, digest


class Table:
    """A run directory with catalog and store, as the explorer and the trainer hold it."""

    def __init__(self, root: Path) -> None:
        self.run_dir = RunDir(root)
        self.run_dir.create()
        self.url = f"sqlite:///{self.run_dir.catalog_file}"
        self.catalog = Catalog(self.url)
        self.store = ExperienceStore(self.run_dir, self.catalog)

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

    def ask(self, question: str, pipeline: str = "p") -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = Questions(self.run_dir, self.catalog, pipeline).ask(question).to_pylist()
        return answer

    def files(self, folder: str) -> set[str]:
        """What lies in a folder of the run, as URIs."""
        place = self.run_dir.root / folder
        return {f"{folder}/{path.name}" for path in place.iterdir()} if place.exists() else set()

    def close(self) -> None:
        self.catalog.close()


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


def group_id(lease: Lease) -> str:
    return digest("group", lease.lease_id)
