"""Where a monitor's store is: a run finds its own there again, and what is no store is one clear line."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from rft_core import metrics
from rft_core.config import MonitorConfig, dump, parse
from rft_core.errors import ConfigError, UserError
from rft_core.monitor import open_monitor, review_command
from tests.children import line, started
from tests.monitors import STEPS, figures, opened, rows, sample
from tests.tiny_files import recipe


def test_the_library_is_not_imported_until_a_monitor_is_opened() -> None:
    code = "import sys, rft_core.monitor; assert 'mlflow' not in sys.modules, 'imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_entered_once_and_found_again(runs_dir: Path) -> None:
    first = opened(runs_dir)
    first.finish("FAILED", "out of memory")
    again = opened(runs_dir)
    other = opened(runs_dir, run_id="run-2")
    assert again.mlflow_run_id == first.mlflow_run_id != other.mlflow_run_id
    assert rows(runs_dir, "select status from runs where run_uuid = ?", first.mlflow_run_id) == [("RUNNING",)]
    assert rows(runs_dir, "select value from tags where key = 'tidemill.run_id' order by value") == [("run-1",), ("run-2",), ("template",)]


def test_a_run_is_found_in_another_experiment_and_after_deletion(runs_dir: Path) -> None:
    first = opened(runs_dir, experiment="one")
    first._client.delete_run(first.mlflow_run_id)
    again = opened(runs_dir, experiment="two")
    assert again.mlflow_run_id == first.mlflow_run_id
    assert again.experiment_id == first.experiment_id
    assert rows(runs_dir, "select lifecycle_stage from runs where run_uuid = ?", first.mlflow_run_id) == [("active",)]


OPENS = """
import sys
from pathlib import Path
from rft_core.config import MonitorConfig
from rft_core.monitor import open_monitor

print("started", flush=True)
open_monitor(MonitorConfig(), Path(sys.argv[1]), "run-1", "quickstart", "", {})
print("opened", flush=True)
"""


def test_a_store_whose_making_was_killed_can_be_opened(tmp_path: Path) -> None:
    with started(OPENS, tmp_path, TMPDIR=str(tmp_path)) as child:
        assert line(child) == "started"
        while not list(tmp_path.glob("tidemill-mlflow-*/mlflow.db")):
            assert child.poll() is None, "it was opened before it could be killed"
            time.sleep(0.01)
    assert not (tmp_path / "mlflow.db").exists()
    monitor = opened(tmp_path)
    monitor.export_steps(STEPS)
    assert figures(tmp_path) == Counter({(key, step): 1 for step, _, shown in STEPS for key in shown})


def test_where_the_store_is(runs_dir: Path, tmp_path: Path, empty_mlflow_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, configured = tmp_path / "else where.db", tmp_path / "configured.db"
    for place in (elsewhere, configured):
        place.write_bytes(empty_mlflow_store.read_bytes())
    assert opened(runs_dir).uri == f"sqlite:///{runs_dir}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    monitor = opened(runs_dir)
    assert monitor.uri == f"sqlite:///{elsewhere}"
    assert review_command(MonitorConfig(), runs_dir) == f"mlflow ui --backend-store-uri 'sqlite:///{elsewhere}'"
    assert review_command(MonitorConfig(tracking_uri="http://host:5000"), runs_dir) == "http://host:5000"
    assert review_command(MonitorConfig(name="memory"), runs_dir) == ""
    assert opened(runs_dir, tracking_uri=f"sqlite:///{configured}").uri == f"sqlite:///{configured}"
    assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{elsewhere}"


def test_an_address_with_a_password_is_shown_without_it(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(**config: object) -> str:
        return review_command(MonitorConfig.model_validate(config), runs_dir, "bin/mlflow")

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert shown(tracking_uri="https://me:s3cr3t@host") == "https://me:***@host"
    assert shown(tracking_uri="https://t0ken@host/a@b") == "https://***@host/a@b"
    assert shown(tracking_uri="postgresql://me:s3cr3t@host/db") == "bin/mlflow ui --backend-store-uri 'postgresql://me:***@host/db'"
    assert shown(tracking_uri="sqlite:////home/me@here/mlflow.db") == "bin/mlflow ui --backend-store-uri sqlite:////home/me@here/mlflow.db"
    monkeypatch.setenv("STORE", "postgresql://me:s3cr3t@host/db")
    assert shown(tracking_uri="env:STORE") == 'bin/mlflow ui --backend-store-uri "$STORE"'
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:s3cr3t@host/db")
    assert shown() == 'bin/mlflow ui --backend-store-uri "$MLFLOW_TRACKING_URI"'


def test_an_address_from_the_environment_is_written_down_nowhere(
    runs_dir: Path, tmp_path: Path, empty_mlflow_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "hidden.db"
    place.write_bytes(empty_mlflow_store.read_bytes())
    monkeypatch.setenv("STORE", f"sqlite:///{place}")
    config = parse(recipe(tmp_path, tmp_path, monitor={"tracking_uri": "env:STORE"}))
    monitor = open_monitor(config.monitor, runs_dir, "run-1", "quickstart", dump(config), config.model_dump(mode="json"))
    assert monitor.uri == f"sqlite:///{place}"
    run = monitor._client.get_run(monitor.mlflow_run_id)
    assert run.data.params["monitor.tracking_uri"] == "env:STORE"
    assert "tracking_uri: env:STORE" in dump(config)
    assert "hidden.db" not in json.dumps([run.data.params, run.data.tags, dump(config)])


def test_a_variable_that_is_not_set_is_one_clear_line(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORE", raising=False)
    with pytest.raises(ConfigError, match=r"^monitor.tracking_uri: found 'env:STORE'; the environment variable 'STORE' must be set here$"):
        opened(runs_dir, tracking_uri="env:STORE")


def test_a_server_that_does_not_answer_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=r"no MLflow server answers at http://me:\*\*\*@127.0.0.1") as raised:
            opened(tmp_path, tracking_uri=address)
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_store_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database, but long enough to be looked at" * 100)
    for uri in (f"sqlite:///{tmp_path}/notes.db", "carrier-pigeon://loft", f"sqlite:///{tmp_path}/notes.db/below/it.db"):
        with pytest.raises(UserError) as raised:
            opened(tmp_path, tracking_uri=uri)
        assert "\n" not in str(raised.value)
        assert uri in str(raised.value)


@pytest.fixture
def server(tmp_path: Path, empty_mlflow_store: Path) -> Iterator[str]:
    """A tracking server of its own, with its own store and its own place for files."""
    store = tmp_path / "server.db"
    store.write_bytes(empty_mlflow_store.read_bytes())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{store}", "--artifacts-destination", str(tmp_path / "files")]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, start_new_session=True)
        try:
            while not _answers(port):
                assert process.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.long
def test_a_tracking_server_shows_the_same(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.artifacts import download_artifacts

    folder = tmp_path / "v000015"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for _ in range(2):
        monitor = opened(tmp_path, tracking_uri=server)
        monitor.export_steps(STEPS)
        monitor.log_evaluation(0, "before", [{"task": "a", "reward": 0.5}], {metrics.EVAL_REWARD: 0.5})
        monitor.log_samples(5, [sample(0, 1.0), sample(1, None, error="RewardError: it raised")])
        assert monitor.register("reverser", folder, 15) == "1"
        monitor.finish("FINISHED")
    client = monitor._client
    assert [(point.step, point.value) for point in client.get_metric_history(monitor.mlflow_run_id, metrics.LOSS)] == [
        (step, shown[metrics.LOSS]) for step, _, shown in STEPS
    ]
    traces = client.search_traces(locations=[monitor.experiment_id], run_id=monitor.mlflow_run_id)
    assert sorted(trace.data.spans[0].attributes["attempt"] for trace in traces) == [0, 1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    found = Path(download_artifacts("models:/reverser@newest"))
    assert found != folder
    assert (found / "config.json").read_text() == "{}"
