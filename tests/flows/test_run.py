"""`rft run` through real Prefect flow runs: figures and artifacts in the API, failures as one line, kills and resumes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from tests import loop
from tests.flows.conftest import ROOT, Server
from tests.tiny_files import recipe


def write(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def rft(server: Server, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return server.command("flows.cli", *arguments, cwd=cwd)


def ask(server: Server, path: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    request = Request(f"{server.url}/{path}", json.dumps(question).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


@pytest.fixture(scope="module")
def shown(server: Server, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the run `shown` was made."""
    folder = tmp_path_factory.mktemp("shown")
    write(folder, recipe(folder, tiny_policy, name="shown", steps=3))
    done = rft(server, "run", "recipe.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "completed"
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3]
    return folder


def test_a_run_shows_its_steps_figures_and_samples_in_prefect(server: Server, shown: Path) -> None:
    flow_runs = ask(server, "flow_runs/filter", {"flow_runs": {"name": {"any_": ["shown"]}}})
    assert [run["state_type"] for run in flow_runs] == ["COMPLETED"]
    task_runs = ask(server, "task_runs/filter", {"flow_runs": {"id": {"any_": [flow_runs[0]["id"]]}}})
    expected = {"curate-2", "rollout-2", "shape-2", "train-2", "sync-2", "report-3", "evaluate-0", "conclude"}
    assert expected <= {run["name"] for run in task_runs}
    artifacts = {a["key"]: a for a in ask(server, "artifacts/latest/filter", {"artifacts": {"key": {"like_": "shown-%"}}})}
    figures = {row["metric"] for row in json.loads(artifacts["shown-step"]["data"])}
    assert {"trainer/loss", "rollout/reward_mean", "time/rollout_s"} <= figures
    assert "| answer | reward | why |" in artifacts["shown-samples"]["data"]
    assert artifacts["shown-progress"]["data"] == pytest.approx(100.0)


def test_the_same_command_again_has_nothing_to_do(server: Server, shown: Path) -> None:
    again = rft(server, "run", "recipe.yaml", cwd=shown)
    assert again.returncode == 0
    assert "nothing to do: all 3 steps are done" in again.stderr


def test_all_attempts_failing_is_exit_code_1_and_one_line(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, name="failing", steps=3, rewards=[{"name": "tests.graders:always_raises"}])
    values["data"]["evaluation"] = None
    done = rft(server, "run", str(write(tmp_path, values)), cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rft: step 1: 16 of 16 attempts failed: 16 x RewardError: ")
    assert "no grader here" in last
    assert "Traceback" not in done.stderr
    states = ask(server, "flow_runs/filter", {"flow_runs": {"name": {"any_": ["failing"]}}})
    assert [run["state_type"] for run in states] == ["FAILED"]
    shown = json.loads(rft(server, "show", "failing", "--json", cwd=tmp_path).stdout)
    assert shown["failed"].startswith("RolloutError: step 1: 16 of 16 attempts failed")
    rows = rft(server, "sql", "failing", "select count(*) as n from experiences where error is not null", "--json", cwd=tmp_path)
    assert json.loads(rows.stdout) == [{"n": 16}]


@pytest.mark.long
def test_another_recipe_is_refused_on_resume_by_key(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    path = write(tmp_path, recipe(tmp_path, tiny_policy, name="changed", steps=1))
    assert rft(server, "run", str(path), cwd=tmp_path).returncode == 0
    refused = rft(server, "run", str(path), "--set", "rollout.group_size=5", cwd=tmp_path)
    assert refused.returncode == 2
    assert "another rollout.group_size" in refused.stderr.splitlines()[-1]
    more = rft(server, "run", str(path), "--set", "steps=2", "--json", cwd=tmp_path)
    assert json.loads(more.stdout)["steps"] == 2


@pytest.mark.long
@pytest.mark.parametrize("delay_s", [0.5, 2.0, 4.0])
def test_a_killed_flow_run_goes_on(delay_s: float, server: Server, tmp_path: Path, tiny_policy: Path, empty_mlflow_store: Path) -> None:
    reference = recipe(tmp_path / "unharmed", tiny_policy, steps=6)
    assert loop.run_in_child(reference) == 0
    values = recipe(tmp_path, tiny_policy, steps=6, monitor__name="mlflow")
    (tmp_path / "runs").mkdir()
    shutil.copyfile(empty_mlflow_store, tmp_path / "runs" / "mlflow.db")
    path = write(tmp_path, values)
    killed = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", str(path), "--json"],
        cwd=tmp_path,
        env=server.environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert killed.stderr is not None
    while b'"event": "begin"' not in killed.stderr.readline():
        assert killed.poll() is None, "the run ended before it began"
    time.sleep(delay_s)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stderr.close()
    done = rft(server, "run", str(path), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert loop.final_weights(values) == loop.final_weights(reference)
    loop.check_ledger(values)
    loop.check_mlflow(values)


def test_bench_show_sql_and_export(server: Server, shown: Path) -> None:
    scored = json.loads(rft(server, "bench", "shown", "--json", cwd=shown).stdout)
    assert [row["version"] for row in scored] == [0, 2, 3]
    described = json.loads(rft(server, "show", "shown", "--json", cwd=shown).stdout)
    assert described["steps"] == "3 of 3"
    evaluated = {row["version"]: row["exact"] for row in described["evaluations"]}
    assert evaluated.items() <= {row["version"]: row["exact"] for row in scored}.items()
    answer = rft(server, "sql", "shown", "select step, avg(reward) from experiences group by 1 order by 1", cwd=shown)
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["step", "1", "2", "3"]
    wrong = rft(server, "sql", "shown", "select nothing from experiences", cwd=shown)
    assert wrong.returncode == 2
    assert "nothing" in wrong.stderr
    exported = rft(server, "export", "shown", "out", cwd=shown)
    assert exported.returncode == 0, exported.stderr
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(shown / "out").config.model_type == "llama"
    assert "is there already" in rft(server, "export", "shown", "out", cwd=shown).stderr


def test_the_tests_use_this_checkout() -> None:
    import flows

    assert Path(flows.__file__).is_relative_to(ROOT)
