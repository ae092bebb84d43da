"""Failpoints: every one that the code passes is listed, and the one that is asked for kills."""

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rft_core.failpoints import LOOP, failpoint

ROOT = Path(__file__).parents[1]

CODE = """
from rft_core.failpoints import failpoint
for number in range(3):
    failpoint("claim.before")
    failpoint("claim.after")
    print(number, flush=True)
"""


def literals() -> set[str]:
    """Every text in the code that looks like a failpoint's name."""
    found: set[str] = set()
    for package in ("rft_core", "tasks", "flows"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name != "failpoints.py":
                nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                calls = [node for node in nodes if isinstance(node, ast.Call)]
                found |= {arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    return found


def test_every_point_is_passed_somewhere() -> None:
    assert len(set(LOOP)) == len(LOOP)
    assert set(LOOP) <= literals()


def test_without_the_variable_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEMILL_KILL_AT", raising=False)
    for name in LOOP:
        failpoint(name)


@pytest.mark.parametrize(("point", "printed"), [("claim.before", 0), ("claim.after:2", 1), ("claim.after:4", 3), ("step.before", 3)])
def test_the_point_that_is_asked_for_kills(point: str, printed: int) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env={**os.environ, "TIDEMILL_KILL_AT": point}, capture_output=True)
    assert len(done.stdout.splitlines()) == printed
    assert done.returncode == (0 if printed == 3 else -signal.SIGKILL)
