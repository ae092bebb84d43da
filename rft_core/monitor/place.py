"""Where a run's MLflow store is; known without MLflow."""

import os
import shlex
from pathlib import Path

from rft_core.config import MonitorConfig

SQLITE = "sqlite:///"


def uri_of(config: MonitorConfig, runs_dir: Path) -> str:
    """The address of the store: the recipe's, else `MLFLOW_TRACKING_URI`, else a SQLite file in the runs folder."""
    return config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{runs_dir.resolve() / 'mlflow.db'}"


def is_server(uri: str) -> bool:
    """Whether the store is a server, which may not see this machine's files."""
    return uri.startswith(("http://", "https://", "databricks"))


def review_command(config: MonitorConfig, runs_dir: Path) -> str:
    """What to type, or to open, to see the runs of a folder; nothing where figures stay in the process."""
    if config.name == "memory":
        return ""
    uri = uri_of(config, runs_dir)
    return uri if is_server(uri) else f"mlflow ui --backend-store-uri {shlex.quote(uri)}"
