"""`rft run`: the flow, watched from a terminal."""

from typing import Any

from flows.rft import rft
from flows.terminal import watcher
from rft_core.config import RunConfig
from tasks.progress import watched_by


async def run_in_terminal(config: RunConfig, json_lines: bool) -> dict[str, Any]:
    """Run the flow and show its progress; Prefect's server is an ephemeral one unless `PREFECT_API_URL` names another."""
    with watcher(json_lines) as progress, watched_by(progress):
        progress.note("starting Prefect")
        summary: dict[str, Any] = await rft(config)
    return summary
