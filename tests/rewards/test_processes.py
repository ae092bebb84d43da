"""Ending process trees."""

import os
import subprocess
import sys
import time

import psutil

from rft_core.rewards import processes
from rft_core.rewards.processes import descendants, kill_tree

TREE = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"


def start_tree() -> tuple[subprocess.Popen[bytes], int]:
    parent = subprocess.Popen([sys.executable, "-c", TREE])
    while not (found := descendants(parent.pid)):
        time.sleep(0.01)
    return parent, found[0]


def test_descendants_are_found_by_both_ways_and_killed() -> None:
    parent, child = start_tree()
    assert descendants(parent.pid) == [child]
    assert processes._children_by_psutil(parent.pid) == [child]
    assert {parent.pid, child} <= set(descendants(os.getpid()))
    kill_tree(parent.pid)
    assert parent.wait() == -9
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)


def test_a_process_that_is_gone_has_no_descendants() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert descendants(gone.pid) == []
    assert processes._children_by_psutil(gone.pid) == []
    kill_tree(gone.pid)
