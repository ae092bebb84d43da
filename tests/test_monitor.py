"""The monitor: one run, each figure once, whatever was killed and told again."""

import json
import os
import signal
import socket
import sqlite3
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
from rft_core.monitor import MemoryMonitor, Monitor, open_monitor, review_command
from rft_core.monitor.base import flat
from rft_core.types import Experience, StopReason
from tests.tiny_files import recipe

RECIPE = "name: quickstart\nsteps: 15\n"
SETTINGS = {"steps": 15, "rewards": [{"name": "exact", "weight": 1.0}], "operators": [], "rollout": {"engine": {"name": "hf"}}}
STEPS = [
    (step, 1_700_000_000.0 + step, {metrics.REWARD_MEAN: 0.1 * step, metrics.LOSS: -0.5 / step, metrics.GRAD_NORM: 3.0})
    for step in range(1, 6)
]


def opened(runs_dir: Path, run_id: str = "run-1", **config: object) -> Monitor:
    return open_monitor(MonitorConfig.model_validate(config), runs_dir, run_id, "quickstart", RECIPE, SETTINGS)


def rows(runs_dir: Path, question: str, *values: object) -> list[tuple[object, ...]]:
    """Ask the SQLite file itself, not the library that wrote it."""
    connection = sqlite3.connect(runs_dir / "mlflow.db")
    try:
        return connection.execute(question, values).fetchall()
    finally:
        connection.close()


def figures(runs_dir: Path) -> Counter[tuple[object, ...]]:
    return Counter(rows(runs_dir, "select key, step from metrics"))


def sample(number: int, reward: float | None, error: str | None = None) -> Experience:
    return Experience(
        experience_id=f"experience-{number}",
        group_id="group",
        task_id="task",
        lease_id="lease",
        attempt=number,
        turn_index=0,
        explorer="explorer-0",
        policy_version=4,
        policy_version_end=4,
        tokens=(1, 2),
        action_mask=(False, True),
        logprobs=(0.0, -0.5),
        temperature=1.0,
        prompt_length=1,
        prompt_text="Reverse: boat lion queen",
        response_text="queen lion boat",
        reward=reward,
        stop_reason=StopReason.EOS,
        reward_parts={"exact": reward or 0.0},
        error=error,
        info={"reason": "3 of 3 words are right"},
        created_at=1_700_000_100.25,
    )


def test_flat_names_nested_values_by_dotted_keys() -> None:
    assert flat(SETTINGS) == {
        "steps": 15,
        "rewards.0.name": "exact",
        "rewards.0.weight": 1.0,
        "operators": [],
        "rollout.engine.name": "hf",
    }


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


def test_parameters_are_logged_once_and_missing_ones_are_added(runs_dir: Path) -> None:
    first = opened(runs_dir)
    changed = open_monitor(MonitorConfig(), runs_dir, "run-1", "quickstart", "steps: 20\n", {"steps": 20, "seed": 3, "long": "x" * 9000})
    found = dict(rows(runs_dir, "select key, value from params where run_uuid = ?", first.mlflow_run_id))
    assert found["steps"] == "15"  # a parameter can't change; the recipe that is shown does
    assert found["seed"] == "3"
    assert found["rewards.0.name"] == "exact"
    assert len(str(found["long"])) == 500
    assert changed.mlflow_run_id == first.mlflow_run_id
    artifact = runs_dir / "mlflow-artifacts" / first.mlflow_run_id / "artifacts" / "recipe.yaml"
    assert artifact.read_text() == "steps: 20\n"


def test_each_figure_is_shown_once_with_the_time_of_its_step(runs_dir: Path) -> None:
    monitor = opened(runs_dir)
    monitor.export_steps(STEPS[:3])
    monitor.export_steps(STEPS)
    redone = [(step, at + 100.0, {key: value + 1.0 for key, value in shown.items()}) for step, at, shown in STEPS]
    opened(runs_dir).export_steps(redone)
    assert figures(runs_dir) == Counter({(key, step): 1 for step, _, shown in STEPS for key in shown})
    found = rows(runs_dir, "select step, timestamp, value from metrics where key = ? order by step", metrics.REWARD_MEAN)
    assert found == [(step, int(at * 1000), shown[metrics.REWARD_MEAN]) for step, at, shown in STEPS]


def test_figures_that_are_not_finite_are_left_out(runs_dir: Path) -> None:
    monitor = opened(runs_dir)
    monitor.export_steps([(1, 1e9, {metrics.LOSS: float("nan"), metrics.GRAD_NORM: float("inf"), metrics.NUM_TOKENS: 5.0})])
    assert figures(runs_dir) == Counter({(metrics.NUM_TOKENS, 1): 1})


def test_more_figures_than_one_request_takes(runs_dir: Path) -> None:
    monitor = opened(runs_dir)
    many = [(step, 1e9, {f"trainer/figure_{number}": float(number) for number in range(30)}) for step in range(1, 81)]
    monitor.export_steps(many)
    assert sum(figures(runs_dir).values()) == 30 * 80


EXPORTS_FOR_EVER = """
import sys
from pathlib import Path
from rft_core.config import MonitorConfig
from rft_core.monitor import open_monitor

monitor = open_monitor(MonitorConfig(), Path(sys.argv[1]), "run-1", "quickstart", "", {})
for step in range(1, 100_000):
    monitor.export_steps([(step, 1e9 + step, {f"trainer/figure_{number}": float(number * step) for number in range(30)})])
    print(step, flush=True)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.013])
def test_an_export_that_is_killed_and_repeated_shows_each_figure_once(runs_dir: Path, delay_s: float) -> None:
    child = subprocess.Popen([sys.executable, "-c", EXPORTS_FOR_EVER, str(runs_dir)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        while int(child.stdout.readline()) < 5:
            pass
        time.sleep(delay_s)
    finally:
        child.send_signal(signal.SIGKILL)
        child.stdout.close()
        child.wait()
    before = figures(runs_dir)
    last = max(int(str(step)) for _, step in before)
    assert last >= 5
    everything = [
        (step, 2e9 + step, {f"trainer/figure_{number}": float(number - step) for number in range(30)}) for step in range(1, last + 4)
    ]
    opened(runs_dir).export_steps(everything)
    assert figures(runs_dir) == Counter({(f"trainer/figure_{number}", step): 1 for number in range(30) for step in range(1, last + 4)})
    assert len(rows(runs_dir, "select 1 from tags where key = 'tidemill.run_id' and value = 'run-1'")) == 1


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
    child = subprocess.Popen(
        [sys.executable, "-c", OPENS, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    while not list(tmp_path.glob("tidemill-mlflow-*/mlflow.db")):
        assert child.poll() is None, "it was opened before it could be killed"
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.stdout.close()
    child.wait()
    assert not (tmp_path / "mlflow.db").exists()
    monitor = opened(tmp_path)
    monitor.export_steps(STEPS)
    assert figures(tmp_path) == Counter({(key, step): 1 for step, _, shown in STEPS for key in shown})


def test_an_evaluation_is_a_table_and_figures_also_when_told_twice(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [{"task": "Reverse: a b", "answer": "b a", "gold": "b a", "reward": 1.0, "exact": True, "reason": "2 of 2"}]
    monitor = opened(runs_dir)
    for _ in range(2):
        monitor.log_evaluation(0, "before", answers, {metrics.EVAL_EXACT: 0.125})
        monitor.log_evaluation(10, "step 10", answers, {metrics.EVAL_EXACT: 0.75})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", monitor.uri)  # `load_table` looks there, whatever its client was made for
    table = monitor._client.load_table(monitor.experiment_id, "evaluations/step-10.json", [monitor.mlflow_run_id])
    assert table.to_dict("records") == answers
    listed = json.loads(monitor._client.get_run(monitor.mlflow_run_id).data.tags["mlflow.loggedArtifacts"])
    assert listed == [{"path": "evaluations/before.json", "type": "table"}, {"path": "evaluations/step-10.json", "type": "table"}]
    assert figures(runs_dir) == Counter({(metrics.EVAL_EXACT, 0): 1, (metrics.EVAL_EXACT, 10): 1})


def test_samples_are_traces_of_the_run_also_when_told_twice(runs_dir: Path) -> None:
    shown = [sample(0, 1.0), sample(1, None, error="DeadlineError: the attempt's 5 s are over")]
    for _ in range(2):
        monitor = opened(runs_dir)
        monitor.log_samples(5, shown)
    traces = monitor._client.search_traces(locations=[monitor.experiment_id], run_id=monitor.mlflow_run_id)
    assert len(traces) == 2
    by_id = {trace.info.client_request_id: trace for trace in traces}
    good, failed = by_id["experience-0"], by_id["experience-1"]
    assert json.loads(good.data.request) == "Reverse: boat lion queen"
    assert json.loads(good.data.response) == "queen lion boat"
    attributes = good.data.spans[0].attributes
    assert attributes["reward"] == 1.0
    assert attributes["reward_parts"] == {"exact": 1.0}
    assert attributes["version"] == 4
    assert attributes["reason"] == "3 of 3 words are right"
    assert [(a.name, a.value, a.rationale) for a in good.info.assessments] == [("reward", 1.0, "3 of 3 words are right")]
    assert good.info.tags["tidemill.step"] == "5"
    assert failed.info.state == "ERROR"
    assert failed.info.assessments == []
    assert failed.data.spans[0].status.description == "DeadlineError: the attempt's 5 s are over"


def test_snapshot_and_ending_are_shown(runs_dir: Path) -> None:
    monitor = opened(runs_dir)
    monitor.log_snapshot({"segment": 4, "label": 0})
    monitor.log_snapshot({"segment": 9, "label": 0})
    monitor.finish("FAILED", "32 of 64 attempts failed")
    tags = monitor._client.get_run(monitor.mlflow_run_id).data.tags
    assert json.loads(tags["tidemill.snapshot"]) == {"segment": 9, "label": 0}
    assert tags["tidemill.reason"] == "32 of 64 attempts failed"
    assert rows(runs_dir, "select status from runs where run_uuid = ?", monitor.mlflow_run_id) == [("FAILED",)]


def test_registered_weights_lead_to_a_folder_that_transformers_loads(
    runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.artifacts import download_artifacts
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    folder = tmp_path / "v000015"
    LlamaForCausalLM(
        LlamaConfig(vocab_size=16, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)
    ).save_pretrained(folder)
    before = sorted(folder.iterdir())
    monitor = opened(runs_dir)
    assert [monitor.register("reverser", tmp_path, 10), monitor.register("reverser", folder, 15)] == ["1", "2"]
    assert opened(runs_dir).register("reverser", folder, 15) == "2"
    assert opened(runs_dir, run_id="run-2").register("other", folder, 15) == "1"
    newest = monitor._client.get_model_version_by_alias("reverser", "newest")
    assert (str(newest.version), newest.run_id, newest.source) == ("2", monitor.mlflow_run_id, folder.as_uri())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", monitor.uri)
    found = Path(download_artifacts("models:/reverser@newest"))
    assert found == folder
    assert sorted(folder.iterdir()) == before
    assert AutoModelForCausalLM.from_pretrained(found).config.vocab_size == 16


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


def test_memory_keeps_what_it_is_told() -> None:
    monitor = open_monitor(MonitorConfig(name="memory"), Path("nowhere"), "run-1", "quickstart", RECIPE, SETTINGS)
    assert isinstance(monitor, MemoryMonitor)
    monitor.export_steps(STEPS)
    monitor.export_steps([(1, 0.0, {metrics.LOSS: 9.0, metrics.GRAD_NORM: float("nan")})])
    monitor.log_evaluation(0, "before", [{"task": "a", "reward": 0.5}], {metrics.EVAL_REWARD: 0.5})
    monitor.log_samples(5, [sample(0, 1.0)])
    monitor.log_samples(5, [sample(0, 1.0)])
    monitor.log_snapshot({"segment": 3})
    assert [monitor.register("m", Path("a"), 5), monitor.register("m", Path("b"), 10), monitor.register("m", Path("a"), 5)] == [
        "1",
        "2",
        "1",
    ]
    monitor.finish("FINISHED")
    assert monitor.metrics[metrics.LOSS, 1] == -0.5
    assert monitor.metrics[metrics.EVAL_REWARD, 0] == 0.5
    assert monitor.evaluations == {"before": [{"task": "a", "reward": 0.5}]}
    assert list(monitor.samples) == [(5, "experience-0")]
    assert monitor.snapshot == {"segment": 3}
    assert monitor.params["rewards.0.name"] == "exact"
    assert monitor.status == "FINISHED"


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
