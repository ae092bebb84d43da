"""One real Prefect server for all flow tests, with a process worker and the repository's deployments; commands that need none."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from flows.cli import main
from rft_core.config import dump, parse
from rft_core.disk import write_whole
from rft_core.operators.apply import pipeline_version
from tests.buffer.table import Table
from tests.flows.commands import Done, Rft
from tests.tiny_files import recipe

ROOT = Path(__file__).parents[2]
START_LIMIT_S = 180


@dataclass(frozen=True)
class Server:
    """A running server and the environment that leads to it."""

    url: str
    environment: dict[str, str]

    def command(self, *arguments: str, cwd: Path = ROOT, limit_s: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a module's command line against the server, as in `command("prefect", "version")`."""
        return subprocess.run(
            [sys.executable, "-m", *arguments], cwd=cwd, env=self.environment, capture_output=True, text=True, check=False, timeout=limit_s
        )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and everything in its group."""
    for ask in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, ask)
        except ProcessLookupError:
            return
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            continue


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`prefect server start` on a free port, with a database of its own."""
    home = tmp_path_factory.mktemp("prefect")
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.5",
        "TIDEMILL_HOME": str(ROOT),
        "PYTHONPATH": str(ROOT),
    }
    with (home / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            await_health(url, process, home / "server.log")
            yield Server(url, environment)
        finally:
            stop(process)


def await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"the Prefect server did not start: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def worker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process work pool with the deployments of `deployments/prefect.yaml`, and a worker for it."""
    for arguments in (
        ("work-pool", "create", "tidemill", "--type", "process"),
        ("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/prefect.yaml"),
    ):
        done = server.command("prefect", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path_factory.mktemp("worker") / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "worker", "start", "--pool", "tidemill"],
            cwd=ROOT,
            env=server.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        yield
        stop(process)


@pytest.fixture
def rft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rft:
    """The `rft` command, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"):
        monkeypatch.setenv(variable, "")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["rft", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Done(code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def table(tmp_path: Path, tiny_shape: Path) -> Iterator[Table]:
    """The table of a run that was started once, as `runs/asked` of the working folder."""
    config = parse(recipe(tmp_path, tiny_shape, name="asked", runs_dir="runs", steps=6))
    opened = Table(tmp_path / "runs" / "asked", pipeline=pipeline_version(config.operators), writer="explorer-0")
    write_whole(opened.run_dir.recipe_file, dump(config))
    yield opened
    opened.close()
