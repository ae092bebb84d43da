"""Deployments of `deployments/prefect.yaml` on a process worker."""

import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from tests.flows.conftest import Server
from tests.flows.test_run import ask
from tests.tiny_files import recipe


def deployment(server: Server, name: str) -> dict[str, Any]:
    with urlopen(f"{server.url}/deployments/name/{name}", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_deployment_runs_on_a_worker_with_a_changed_parameter(server: Server, worker: None, tmp_path: Path, tiny_policy: Path) -> None:
    schema = deployment(server, "rft/quickstart")["parameter_openapi_schema"]
    assert {"config", "name", "steps", "seed"} <= set(schema["properties"])
    rollout = schema["definitions"]["RolloutConfig"]["properties"]["group_size"]
    assert rollout["exclusiveMinimum"] == 0
    assert "Attempts" in rollout["description"]

    config = recipe(tmp_path, tiny_policy, name="deployed", steps=9)
    parameters = ("--param", f"config={json.dumps(config)}", "--param", "steps=2")
    done = server.command("prefect", "deployment", "run", "rft/quickstart", *parameters, "--watch", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = ask(server, "flow_runs/filter", {"flow_runs": {"name": {"any_": ["deployed"]}}})
    assert [run["state_type"] for run in runs] == ["COMPLETED"]
    summary = json.loads((tmp_path / "runs" / "deployed" / "summary.json").read_text())
    assert summary["steps"] == 2


def test_a_bad_parameter_is_refused(server: Server, worker: None) -> None:
    for bad in ("steps=-3", 'config={"name": "x", "stepz": 3}'):
        done = server.command("prefect", "deployment", "run", "rft/quickstart", "--param", bad)
        assert done.returncode != 0
        assert "alidation" in done.stdout + done.stderr


def test_the_deployment_holds_the_recipe(server: Server, worker: None) -> None:
    parameters = deployment(server, "rft/quickstart")["parameters"]
    recipe_file = Path(__file__).parents[2] / "deployments" / "recipes" / "quickstart.yaml"
    written = yaml.safe_load(recipe_file.read_text())
    assert parameters["config"]["steps"] == written["steps"]
    assert parameters["config"]["data"]["train"]["format"]["examples"] == written["data"]["train"]["format"]["examples"]
