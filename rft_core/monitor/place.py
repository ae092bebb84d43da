"""Where a run's MLflow store is; known without MLflow."""

import os
import re
import shlex
from pathlib import Path

from rft_core.config import MonitorConfig
from rft_core.variables import revealed, variable_of

SQLITE = "sqlite:///"


def uri_of(config: MonitorConfig, runs_dir: Path) -> str:
    """The address of the store: the recipe's, else `MLFLOW_TRACKING_URI`, else a SQLite file in the runs folder.

    Raises:
        ConfigError: The recipe names an environment variable that is not set.
    """
    configured = revealed("monitor.tracking_uri", config.tracking_uri or "")
    return configured or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{runs_dir.resolve() / 'mlflow.db'}"


def require_address(config: MonitorConfig) -> None:
    """Look whether the address of the store can be known here.

    Raises:
        ConfigError: The recipe names an environment variable that is not set.
    """
    if config.name == "mlflow":
        uri_of(config, Path())


def is_server(uri: str) -> bool:
    """Whether the store is a server, which may not see this machine's files."""
    return uri.startswith(("http://", "https://", "databricks"))


def review_command(config: MonitorConfig, runs_dir: Path, mlflow: str = "mlflow") -> str:
    """What to type, or to open, to see the runs of a folder; nothing where figures stay in the process.

    No secret is shown: an address that holds one is named by its variable, or else masked.

    Args:
        config: The recipe's section.
        runs_dir: Where the default store is kept.
        mlflow: How a shell here finds MLflow's program.
    """
    if config.name == "memory":
        return ""
    uri = uri_of(config, runs_dir)
    shown = without_secrets(uri)
    if is_server(uri):
        return shown
    variable = variable_of(config.tracking_uri or "") or (None if config.tracking_uri else "MLFLOW_TRACKING_URI")
    return f"{mlflow} ui --backend-store-uri " + (
        shlex.quote(uri) if shown == uri else f'"${variable}"' if variable else shlex.quote(shown)
    )


def without_secrets(text: str) -> str:
    """A text with what stands before the `@` of addresses masked: `//user:***@host`, or `//***@host` where that is a token."""
    return re.sub(r"://(?:([^\s/:@]*:)[^\s/]*|[^\s/]+)@", lambda found: f"://{found.group(1) or ''}***@", text)
