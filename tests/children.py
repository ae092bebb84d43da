"""Python code in a process of its own, which ends, if need be by force, with the block that started it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

Child = subprocess.Popen[str]


@contextmanager
def started(code: str, *arguments: str | Path, **environment: str) -> Iterator[Child]:
    """A process that runs some code; SIGKILL ends it at the end of the block at the latest."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def line(child: Child) -> str:
    """The next line that it prints."""
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def leave_dead(child: Child) -> None:
    """End it, and wait until it has ended, but not for it: it stays a zombie."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
