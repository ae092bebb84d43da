"""What every monitor takes. All of it may be told again after a crash: nothing is shown twice.

The methods block: call them in a thread of their own where an event loop must stay alive.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rft_core.types import Experience

StepMetrics = tuple[int, float, Mapping[str, float]]
"""A committed step: its number, when it was committed (seconds since the epoch), and its figures by the names of
`rft_core.metrics`. Figures that are not finite are left out: a review page can't draw them."""

NEWEST = "newest"
"""The alias that the registry keeps on the last weights that were registered (MLflow reserves `latest`)."""


class Monitor(Protocol):
    """One run as people review it."""

    def export_steps(self, rows: Sequence[StepMetrics]) -> None:
        """Show the figures of committed steps; those that are shown already are passed over."""
        ...

    def log_evaluation(self, step: int, name: str, rows: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]) -> None:
        """Show an evaluation.

        Args:
            step: The step that made the weights; 0 for the base model.
            name: As in `before`, `step 10` or `after`; a second one of the same name replaces the first one's table.
            rows: One for each task, all with the same keys.
            metrics: Shown at `step`, once.
        """
        ...

    def log_samples(self, step: int, samples: Sequence[Experience]) -> None:
        """Show rollouts of a step for people to read; one that is told again replaces itself."""
        ...

    def log_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """Name the state of the experience table that the figures so far belong to; replaces the one before."""
        ...

    def register(self, name: str, folder: Path, version: int) -> str:
        """Register weights as a model, and let the alias `newest` point to them.

        Args:
            name: Of the registered model.
            folder: A published Hugging Face folder, which must be kept: it is pointed to, not copied, where the
                registry can see it.
            version: The step that made the weights. Registering the same version of a run again changes nothing.

        Returns:
            The registry's own number for it.
        """
        ...

    def finish(self, status: str, reason: str = "") -> None:
        """Say how the run ended.

        Args:
            status: `FINISHED`, `FAILED` or `KILLED`.
            reason: Why, in one line.
        """
        ...


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key; lists are numbered, and what is empty stays itself.

    Example:
        >>> flat({"steps": 15, "rollout": {"engine": {"args": {}}}, "rewards": [{"name": "exact"}]})
        {'steps': 15, 'rollout.engine.args': {}, 'rewards.0.name': 'exact'}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        path = f"{prefix}{key}"
        inner = {str(index): item for index, item in enumerate(value)} if isinstance(value, list | tuple) else value
        if isinstance(inner, Mapping) and inner:
            found |= flat(inner, f"{path}.")
        else:
            found[path] = value
    return found


def reason_of(sample: Experience) -> str:
    """Why a rollout has this reward, or what went wrong."""
    return sample.error or str(sample.info.get("reason", ""))


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """The figures that can be drawn."""
    return {key: float(value) for key, value in metrics.items() if math.isfinite(value)}
