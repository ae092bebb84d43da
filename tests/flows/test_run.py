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


def test_a_run_shows_its_steps_figures_and_samples_in_prefect(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, name="shown", steps=3)
    path = write(tmp_path, values)
    done = rft(server, "run", str(path), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "completed"
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3]

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

    again = rft(server, "run", str(path), cwd=tmp_path)
    assert again.returncode == 0
    assert "nothing to do: all 3 steps are done" in again.stderr


def always_raises(task: object, answer: str) -> float:
    raise ValueError("no grader here")


def test_all_attempts_failing_is_exit_code_1_and_one_line(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, name="failing", steps=3, rewards=[{"name": "tests.flows.test_run:always_raises"}])
    values["data"]["evaluation"] = None
    done = rft(server, "run", str(write(tmp_path, values)), cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rft: 16 of 16 attempts of step 1 failed: 16 x RewardError: ")
    assert "no grader here" in last
    assert "Traceback" not in done.stderr
    states = ask(server, "flow_runs/filter", {"flow_runs": {"name": {"any_": ["failing"]}}})
    assert [run["state_type"] for run in states] == ["FAILED"]
    rows = rft(server, "sql", "failing", "select count(*) as n from experiences where error is not null", "--json", cwd=tmp_path)
    assert json.loads(rows.stdout) == [{"n": 16}]


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("process 7 on here")
file.flush()
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_run_of_the_same_folder_is_refused(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, name="busy")
    folder = loop.run_dir(values)
    folder.create()
    path = write(tmp_path, values)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder.lock_file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = rft(server, "run", str(path), cwd=tmp_path)
        holder.kill()
    assert done.returncode == 2
    assert "is in use by process 7 on here" in done.stderr.splitlines()[-1]


def test_another_recipe_is_refused_on_resume_by_key(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    path = write(tmp_path, recipe(tmp_path, tiny_policy, name="changed", steps=1))
    assert rft(server, "run", str(path), cwd=tmp_path).returncode == 0
    refused = rft(server, "run", str(path), "--set", "rollout.group_size=5", cwd=tmp_path)
    assert refused.returncode == 2
    assert "another rollout.group_size" in refused.stderr.splitlines()[-1]
    more = rft(server, "run", str(path), "--set", "steps=2", "--json", cwd=tmp_path)
    assert json.loads(more.stdout)["steps"] == 2


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


def test_bench_show_sql_and_export(server: Server, tmp_path: Path, tiny_policy: Path) -> None:
    path = write(tmp_path, recipe(tmp_path, tiny_policy, name="asked", steps=2))
    assert rft(server, "run", str(path), cwd=tmp_path).returncode == 0
    scored = json.loads(rft(server, "bench", "asked", "--json", cwd=tmp_path).stdout)
    assert [row["version"] for row in scored] == [0, 2]
    shown = json.loads(rft(server, "show", "asked", "--json", cwd=tmp_path).stdout)
    assert shown["steps"] == "2 of 2"
    evaluated = {row["version"]: row["exact"] for row in shown["evaluations"]}
    assert {row["version"]: row["exact"] for row in scored} == evaluated
    answer = rft(server, "sql", "asked", "select step, avg(reward) from experiences group by 1 order by 1", cwd=tmp_path)
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["step", "1", "2"]
    wrong = rft(server, "sql", "asked", "select nothing from experiences", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "nothing" in wrong.stderr
    exported = rft(server, "export", "asked", "out", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.model_type == "llama"
    assert "is there already" in rft(server, "export", "asked", "out", cwd=tmp_path).stderr


def test_the_tests_use_this_checkout() -> None:
    import flows

    assert Path(flows.__file__).is_relative_to(ROOT)
