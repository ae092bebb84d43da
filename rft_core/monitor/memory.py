"""A monitor that keeps everything in the process, for tests and notebooks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rft_core.monitor.base import StepMetrics, finite, flat
from rft_core.types import Experience


class MemoryMonitor:
    """Keeps what it is told in plain attributes."""

    def __init__(self, run_id: str, run_name: str, recipe: str, settings: Mapping[str, Any]) -> None:
        self.run_id = run_id
        self.run_name = run_name
        self.recipe = recipe
        self.params = flat(settings)
        self.metrics: dict[tuple[str, int], float] = {}
        """Each figure by its name and step."""
        self.evaluations: dict[str, list[dict[str, Any]]] = {}
        self.samples: dict[tuple[int, str], Experience] = {}
        """By step and experience id."""
        self.snapshot: dict[str, Any] = {}
        self.models: dict[tuple[str, int], Path] = {}
        """Folder of each registered name and version."""
        self.status = "RUNNING"
        self.reason = ""

    def export_steps(self, rows: Sequence[StepMetrics]) -> None:
        """See `Monitor`."""
        for step, _, metrics in rows:
            self._log(step, metrics)

    def log_evaluation(self, step: int, name: str, rows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> None:
        """See `Monitor`."""
        self.evaluations[name] = [dict(row) for row in rows]
        self._log(step, metrics)

    def log_samples(self, step: int, samples: Sequence[Experience]) -> None:
        """See `Monitor`."""
        self.samples.update({(step, sample.experience_id): sample for sample in samples})

    def log_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """See `Monitor`."""
        self.snapshot = dict(snapshot)

    def register(self, name: str, folder: Path, version: int) -> str:
        """See `Monitor`."""
        self.models.setdefault((name, version), folder)
        return str([key for key in self.models if key[0] == name].index((name, version)) + 1)

    def finish(self, status: str, reason: str = "") -> None:
        """See `Monitor`."""
        self.status, self.reason = status, reason

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in finite(metrics).items():
            self.metrics.setdefault((key, step), value)
