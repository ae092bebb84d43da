"""Rewards as users write them on a bad day; they do what the answer says. Used in worker processes by `test_pool`."""

import ctypes
import multiprocessing
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rft_core.types import Task


def act(task: Task, answer: str) -> Any:
    """Do what the answer says, as in `hang` or `child /tmp/pids`."""
    verb, _, rest = answer.partition(" ")
    return {
        "fine": lambda rest: 1.0,
        "hang": _hang,
        "spin": lambda rest: bool(re.match(r"(a+)+$", "a" * 40 + "b")),
        "children": _children,
        "children_and_hang": lambda rest: (_children(rest), _hang(rest)),
        "pool": lambda rest: float(sum(multiprocessing.Pool(2).map(abs, [1, -2]))),
        "exit": lambda rest: os._exit(3),
        "fork_and_exit": _fork_and_exit,
        "crash": lambda rest: ctypes.string_at(0),
        "print": _print,
        "wrong": lambda rest: [1.0],
        "pid": lambda rest: float(os.getpid()),
        "modules": lambda rest: float(rest in sys.modules),
        "variable": lambda rest: float(rest in os.environ),
        "echo": lambda rest: float(rest == task.facts["echo"]),
    }[verb](rest)


def _hang(rest: str) -> None:
    while True:
        time.sleep(60)


def _children(file: str) -> float:
    """Start a process, and another that has left the session and its parent; their ids go to the file."""
    child = subprocess.Popen(["sleep", "600"])
    if os.fork() == 0:
        os.setsid()
        orphan = os.fork()
        if orphan == 0:
            time.sleep(600)
        Path(file).write_text(f"{child.pid} {orphan}")
        os._exit(0)
    while not Path(file).exists() or len(Path(file).read_text().split()) < 2:
        time.sleep(0.01)
    return 1.0


def _fork_and_exit(rest: str) -> None:
    if os.fork() == 0:
        time.sleep(600)
    os._exit(4)


def _print(rest: str) -> float:
    print("printed by a reward")
    os.write(1, b"written by a reward\n")
    return 1.0
