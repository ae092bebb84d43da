"""Flows, run and watched from a terminal."""

import asyncio
import signal
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from flows.bench import bench
from flows.explore import explore
from flows.rft import rft, train
from flows.terminal import watcher
from rft_core.config import RunConfig
from rft_core.errors import UserError
from rft_core.monitor import without_secrets
from tasks.progress import watched_by


async def run_in_terminal(config: RunConfig, json_lines: bool) -> dict[str, Any]:
    """Run the flow and show its progress; Prefect's server is an ephemeral one unless `PREFECT_API_URL` names another.

    Raises:
        UserError: The server that is named does not answer.
    """
    with watcher(json_lines) as progress, watched_by(progress):
        progress.note("starting Prefect")
        await asyncio.to_thread(_require_server)
        summary: dict[str, Any] = await rft(config)
    return summary


async def train_in_terminal(config: RunConfig, json_lines: bool) -> dict[str, Any]:
    """Run the flow of a trainer alone, and show its progress.

    Raises:
        UserError: The server that is named does not answer.
    """
    with watcher(json_lines) as progress, watched_by(progress):
        await asyncio.to_thread(_require_server)
        summary: dict[str, Any] = await train(config)
    return summary


async def explore_in_terminal(run: str, name: str | None, rollout: dict[str, Any], json_lines: bool) -> int:
    """Run the flow of an explorer.

    Raises:
        UserError: The server that is named does not answer.
    """
    with watcher(json_lines) as progress, watched_by(progress):
        await asyncio.to_thread(_require_server)
        groups: int = await explore(run, name, rollout)
    return groups


async def bench_in_terminal(run: str, versions: list[int] | None) -> list[dict[str, Any]]:
    """Run the flow that scores versions.

    Raises:
        UserError: The server that is named does not answer.
    """
    await asyncio.to_thread(_require_server)
    scores: list[dict[str, Any]] = await bench(run, versions)
    return scores


def _require_server() -> None:
    """Start the ephemeral server, or ask the one that is named whether it is there: a flow would fail on it with a long traceback.

    Call it in a thread of its own. The ephemeral server inherits that thread's blocked Ctrl-C, which a terminal sends to
    every process in it: a server that ended first would leave the run waiting for it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with get_client(sync_client=True) as client:
            error = client.api_healthcheck()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if error is not None:
        url = without_secrets(get_current_settings().api.url or "its ephemeral address")
        reason = without_secrets((str(error).strip() or type(error).__name__).splitlines()[0])
        raise UserError(
            f"no Prefect server answers at {url} ({reason})", "start it, or unset PREFECT_API_URL to have one started for the run"
        )
