"""The monitor: one run, each figure once, whatever was killed and told again."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from rft_core import metrics
from rft_core.config import MonitorConfig
from rft_core.monitor import MemoryMonitor, open_monitor
from rft_core.monitor.base import flat
from tests.children import line, started
from tests.monitors import RECIPE, SETTINGS, STEPS, figures, opened, rows, sample


def test_flat_names_nested_values_by_dotted_keys() -> None:
    assert flat(SETTINGS) == {
        "steps": 15,
        "rewards.0.name": "exact",
        "rewards.0.weight": 1.0,
        "operators": [],
        "rollout.engine.name": "hf",
    }


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
    with started(EXPORTS_FOR_EVER, runs_dir) as child:
        while int(line(child)) < 5:
            pass
        time.sleep(delay_s)
    before = figures(runs_dir)
    last = max(int(str(step)) for _, step in before)
    assert last >= 5
    everything = [
        (step, 2e9 + step, {f"trainer/figure_{number}": float(number - step) for number in range(30)}) for step in range(1, last + 4)
    ]
    opened(runs_dir).export_steps(everything)
    assert figures(runs_dir) == Counter({(f"trainer/figure_{number}", step): 1 for number in range(30) for step in range(1, last + 4)})
    assert len(rows(runs_dir, "select 1 from tags where key = 'tidemill.run_id' and value = 'run-1'")) == 1


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
