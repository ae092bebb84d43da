"""Process trees: who is in one, and how to end all of it.

On Linux a process can ask to be given the orphans among its descendants (a *subreaper*), so nothing that a reward
starts can get away by detaching itself. Elsewhere detached processes are out of reach.
"""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import psutil

from rft_core.errors import TidemillError

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
KILL_LIMIT_S = 10.0
"""How long killed processes may take to go; only one that hangs in the kernel takes longer than a moment."""


def become_subreaper() -> None:
    """Be given the orphans among this process's descendants, to end and to reap them. Does nothing but on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Be killed when the parent ends, however it ends. Only for a child of a process with one thread; Linux only.

    Args:
        parent: The parent's process id, from before this child was made.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def descendants(pid: int) -> list[int]:
    """The ids of a process's children and of theirs, zombies included."""
    children = _children(pid)
    return children + [deeper for child in children for deeper in descendants(child)]


def kill_descendants() -> int:
    """End everything below this process and reap it.

    Returns:
        How many processes there were, those that had ended by themselves and waited to be reaped included.

    Raises:
        TidemillError: Something is still there after `KILL_LIMIT_S`.
    """
    seen: set[int] = set()
    give_up = time.monotonic() + KILL_LIMIT_S
    # Again and again, since what is about to be killed may start others.
    while found := descendants(os.getpid()):
        seen.update(found)
        for pid in found:
            _kill(pid)
        _reap()
        if time.monotonic() > give_up:
            raise TidemillError(f"processes {found} of a reward can't be killed", "they hang in the kernel: look at what they wait for")
        time.sleep(0.0005)
    return len(seen)


def kill_tree(pid: int) -> None:
    """Kill a process and everything below it, without reaping: for a child that someone else waits for."""
    tree = [pid, *descendants(pid)]
    for member in tree:
        _kill(member)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    try:
        # Fifty times quicker than psutil, which reads the state of every process of the machine.
        return [int(child) for thread in tasks.iterdir() for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return _children_by_psutil(pid)


def _children_by_psutil(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []
