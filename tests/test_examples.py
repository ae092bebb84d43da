"""What the documentation shows runs: the README's blocks, the recipes, the notebook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.recipe import commented
from rft_core.config import parse, read_recipe
from rft_core.plan import resolve
from rft_core.types import Message, Task
from tests import loop
from tests.tiny_files import recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def finished(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A finished run of the tiny policy, named like the README's."""
    values = recipe(tmp_path_factory.mktemp("finished"), tiny_policy, name="quickstart", steps=3)
    assert loop.run_in_child(values) == 0
    return values


def test_readme_question_is_answered_in_the_shape_that_it_shows(finished: dict[str, Any]) -> None:
    shown = re.search(r'rft sql quickstart "([^"]+)"\n```\n\n```\n(.*?)```', README, re.DOTALL)
    assert shown is not None
    question, answer = shown.groups()
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "sql", "quickstart", question, "--runs-dir", finished["runs_dir"]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()
    assert header.split() == answer.splitlines()[0].split()
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]


def test_readme_reward_scores() -> None:
    source = re.search(r"```python\n(def brief.*?)```", README, re.DOTALL)
    assert source is not None
    names: dict[str, Any] = {}
    exec(source.group(1), names)
    task = Task("t", (Message("user", "Reverse: a b c"),), answer="c b a")
    assert [names["brief"](task, answer) for answer in (" c b a", "c b a indeed", "a b c", "")] == [1.0, 0.0, 0.0, 0.0]


def test_readme_names_every_command() -> None:
    from flows.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert all(f"`{name}`" in README for name in commands)


def test_readme_names_every_view() -> None:
    from rft_core.buffer import VIEWS

    assert all(f"`{view}`" in README for view in VIEWS)


@pytest.mark.parametrize("path", sorted((ROOT / "deployments" / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_resolve(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert resolve(read_recipe(path)).derived


def test_the_recipe_of_init_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    values = yaml.safe_load(commented())
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    plan = resolve(parse(values))
    assert plan.config.name == "my-run"
    assert "not checked" in plan.unchecked[0]


def test_notebook_runs_on_a_finished_run(finished: dict[str, Any]) -> None:
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / "review.ipynb", as_version=4)
    environment = {**os.environ, "TIDEMILL_RUN": str(loop.run_dir(finished).root), "PYTHONPATH": str(ROOT)}
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}})
    client.execute(env=environment)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert any("mean reward" in output.get("text", "") for output in outputs)
