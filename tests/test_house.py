"""The project files agree with the code and with each other."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
"""Without what a `make` that runs the tests hands on to another one."""
CONSTRAINTS = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def names(requirements: list[str]) -> set[str]:
    """The distributions of some requirements, as the package index spells them."""
    return {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ]", requirement)[0]).lower() for requirement in requirements}


def imported() -> set[str]:
    """The distributions that the code imports from."""
    modules: set[str] = set()
    for package in ("rft_core", "tasks", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    modules |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    modules.add(node.module.split(".")[0])
    distributions = packages_distributions()
    foreign = modules - set(sys.stdlib_module_names) - {"rft_core", "tasks", "flows"}
    return set().union(*(names(distributions[module][:1]) for module in foreign))


def test_what_is_imported_is_required() -> None:
    required = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["envs"])
    # `import mlflow` finds the parts that MLflow is packed in.
    assert imported() - {"mlflow-skinny", "mlflow-tracing"} <= required


def test_what_is_required_is_pinned() -> None:
    extras = PROJECT["optional-dependencies"]
    assert names([*PROJECT["dependencies"], *extras["dev"], *extras["envs"]]) <= names(CONSTRAINTS)


def test_constraints_are_exact_and_name_no_place() -> None:
    assert [line for line in CONSTRAINTS if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert "torch==2.13.0" in CONSTRAINTS


def test_bare_make_lists_its_targets() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    listed = [line.split()[1] for line in shown.splitlines()]
    assert {"setup", "quickstart", "test", "test-long", "check", "bench", "up"} <= set(listed)
    assert all(len(line.split()) > 3 for line in shown.splitlines())


def test_setup_without_a_python_says_so_in_one_line(tmp_path: Path) -> None:
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    done = subprocess.run(["make", "setup", "PYTHON=/nowhere/python3"], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("make setup: found no Python 3.11 or newer with venv (looked for /nowhere/python3)")
    assert not (tmp_path / ".venv").exists()
