"""Monitors: what people review of a run. Importing this imports no MLflow."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rft_core.config import MonitorConfig
from rft_core.monitor.base import NEWEST, Monitor, StepMetrics
from rft_core.monitor.memory import MemoryMonitor
from rft_core.monitor.place import require_address, review_command, without_secrets

__all__ = ["NEWEST", "MemoryMonitor", "Monitor", "StepMetrics", "open_monitor", "require_address", "review_command", "without_secrets"]


def open_monitor(
    config: MonitorConfig, runs_dir: Path, run_id: str, run_name: str, recipe: str, settings: Mapping[str, Any] | None = None
) -> Monitor:
    """Open the monitor that a recipe asks for, and in it the run: a new one, or the one that this run had before.

    Args:
        config: The recipe's section.
        runs_dir: Where the default store is kept.
        run_id: What the run is found by, whatever its name.
        run_name: What people see.
        recipe: The resolved recipe, as YAML.
        settings: The same as nested values; each becomes a parameter by its dotted key.

    Raises:
        UserError: The store can't be reached, or refuses.
    """
    if config.name == "memory":
        return MemoryMonitor(run_id, run_name, recipe, settings or {})
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["DO_NOT_TRACK"] = "true"  # MLflow reads only the word, not `1`; both before it is imported
    from rft_core.monitor.mlflow import MlflowMonitor  # noqa: PLC0415 - the heavy half: MLflow takes two seconds to import

    return MlflowMonitor(config, runs_dir, run_id, run_name, recipe, settings or {})
