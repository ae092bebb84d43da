"""Who may import whom, and what must stay light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = [path for package in ("rft_core", "tasks", "flows") for path in sorted((ROOT / package).rglob("*.py"))]

LIGHT = (
    "rft_core.plan",
    "rft_core.explorer",
    "rft_core.buffer",
    "rft_core.catalog",
    "rft_core.taskset",
    "rft_core.tokens",
    "rft_core.monitor",
    "rft_core.weights",
    "flows.cli",
)
"""Modules that must be importable without torch, MLflow and Prefect."""

REGISTRIES = (
    "rft_core.algorithms:algorithms",
    "rft_core.engines:engines",
    "rft_core.environments:environments",
    "rft_core.operators:operators",
    "rft_core.rewards:rewards",
)

EXPLAINED = re.compile(r"# noqa: PLC0415\W+\w+ \w+")
"""The mark of a deferred import, with a reason behind it."""

HEAVY = ("torch", "mlflow", "prefect")


def heavy_after(statements: list[str]) -> dict[str, list[str]]:
    """What a fresh process imports that is heavy, by the first statement that does so."""
    code = f"""
import sys
seen = set()
for statement in {statements!r}:
    exec(statement)
    now = {{name for name in {HEAVY!r} if name in sys.modules}}
    if now - seen:
        print(statement, *sorted(now - seen), sep=chr(9))
    seen |= now
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return {line.split("\t")[0]: line.split("\t")[1:] for line in done.stdout.splitlines()}


def test_contracts_hold() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_light_modules_import_nothing_heavy() -> None:
    assert heavy_after([f"import {module}" for module in LIGHT]) == {}


def test_importing_the_files_of_extensions_imports_nothing_heavy() -> None:
    pairs = [registry.split(":") for registry in REGISTRIES]
    assert heavy_after([f"from {module} import {name}; assert {name}.names()" for module, name in pairs]) == {}


def test_a_function_imports_only_what_is_heavy() -> None:
    """A deferred import is the heavy half of an extension, with its reason beside it, or in the command line."""
    unexplained = []
    for path in SOURCES:
        lines = path.read_text(encoding="utf-8").splitlines()
        places = [] if path == ROOT / "flows" / "cli.py" else deferred_imports(path)
        unexplained += [
            f"{path.relative_to(ROOT)}:{line}: {lines[line - 1].strip()}" for line in places if not EXPLAINED.search(lines[line - 1])
        ]
    assert unexplained == []


def deferred_imports(path: Path) -> list[int]:
    """The lines of the imports inside functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    imports = {node.lineno for function in functions for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)}
    return sorted(imports)


def test_no_file_and_no_function_holds_two_things() -> None:
    """Files stay under some 400 lines and functions under 60: what is longer usually holds two things."""
    long_files = [str(path.relative_to(ROOT)) for path in SOURCES if len(path.read_text(encoding="utf-8").splitlines()) > 400]
    long_functions = [f"{path.relative_to(ROOT)}:{name}" for path in SOURCES for name, lines in functions_of(path) if lines > 60]
    assert (long_files, long_functions) == ([], [])


def functions_of(path: Path) -> list[tuple[str, int]]:
    """The functions of a file with their numbers of lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in found]
