"""Stands between a parent and its child, so that neither the child nor what the child started outlives the parent.

    python -m rft_core.children.launcher STOP_SIGNAL GRACE_S COMMAND [ARGUMENT ...]

STOP_SIGNAL is a number, GRACE_S are seconds. The child leads a session of its own, reads nothing, and writes to the
launcher's standard error. The launcher's standard input is the parent's hand on it: once that ends (the parent closed
it, or is dead) the child's process group gets STOP_SIGNAL, and SIGKILL if it is still there after GRACE_S. SIGINT, SIGTERM
and SIGHUP ask for the same. What the child leaves behind when it ends gets STOP_SIGNAL too, and SIGKILL after ORPHANS_S;
on Linux that includes what left the group. The launcher prints the child's process id, ends last, and ends with the child's
exit code: 128 + n if signal n killed it, 126 or 127 if the command can't be run. If the launcher is killed, the system kills the child.

A parent can't ask the system for that itself: PR_SET_PDEATHSIG fires when the *thread* that forked ends. The launcher has but one.
It imports the standard library alone, so that it is there in no time and also runs as a file under `python -I -S`.
"""

import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

ORPHANS_S = 1.0
"""Seconds between the stop signal and SIGKILL for what an ended child left behind; not more than the child itself would have had."""

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Family:
    """The child and, where the system tells, all that it started, its orphans too.

    Args:
        command: What the child is, looked for along PATH.
    """

    def __init__(self, command: Sequence[str]) -> None:
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        self._children = Path(f"/proc/self/task/{os.getpid()}/children")
        if prctl and self._children.exists():
            prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children of the launcher, also those that left the group
        self.pid = _start(command, prctl)
        self.returncode: int | None = None
        """Of the child: -n if signal n killed it, None while it lives."""

    def is_left(self) -> bool:
        """Takes note of who has ended; whether anybody is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._note(pid, status)

    def signal(self, number: int) -> None:
        """Send a signal to the child's process group, and to the orphans that left it."""
        with suppress(ProcessLookupError, PermissionError):  # nobody is left there, or only what runs as another user
            os.killpg(self.pid, number)
        children = self._children.read_text().split() if self._children.exists() else []
        for pid in map(int, children):  # a number is theirs until they are waited for
            with suppress(PermissionError):
                if os.getpgid(pid) != self.pid:
                    os.kill(pid, number)

    def kill(self) -> None:
        """End all of it by force, and wait until it has ended."""
        while True:  # whoever ends may leave new orphans
            self.signal(signal.SIGKILL)
            try:
                self._note(*os.waitpid(-1, 0))
            except ChildProcessError:
                return

    def _note(self, pid: int, status: int) -> None:
        if pid == self.pid:
            self.returncode = os.waitstatus_to_exitcode(status)


def _start(command: Sequence[str], prctl: Callable[..., int] | None) -> int:
    """Start the child, and return its process id once it is the command: signals before that would be lost."""
    launcher = os.getpid()
    became, becoming = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(command, prctl, launcher)
    os.close(becoming)
    os.read(became, 1)  # ends when the command replaces the fork, or the fork ends
    os.close(became)
    return pid


def _become(command: Sequence[str], prctl: Callable[..., int] | None, launcher: int) -> NoReturn:
    """Be the child. What the parent ignores, as a shell lets a job in the background do with Ctrl-C, the child does not."""
    code = 126
    try:
        os.setsid()
        if prctl:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:  # it ended before the system was told
            os._exit(code)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        os.execvp(command[0], [*command])  # noqa: S606 - a program to run as it is; no shell is wanted
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        os.write(2, f"{command[0]} can't be run: {error.strerror}\n".encode())
    finally:
        os._exit(code)


class Bell:
    """Wakes the launcher: when a process ends, and when it is to stop."""

    def __init__(self) -> None:
        self._wakes, rings = os.pipe()
        os.set_blocking(rings, False)
        signal.set_wakeup_fd(rings, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_STOPPING):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # for the child as well: the parent's thread may have blocked what stops it
        self._stops = [0]
        with suppress(AttributeError, OSError):  # the system has no such thing; it only helps where a fork of the parent holds the pipe
            self._stops.append(os.pidfd_open(os.getppid()))

    def wait(self) -> bool:
        """Wait for a process that ends, or for the word to stop; whether it was that."""
        ready, _, _ = select.select([self._wakes, *self._stops], [], [])
        heard = os.read(self._wakes, 1024) if self._wakes in ready else b""
        return any(place in ready for place in self._stops) or any(number in heard for number in _STOPPING)

    def wait_for_an_end(self, timeout_s: float) -> None:
        """Wait for a process that ends, for so long."""
        if select.select([self._wakes], [], [], timeout_s)[0]:
            os.read(self._wakes, 1024)


def main(arguments: Sequence[str]) -> int:
    """Run a child until it ends or is to stop.

    Args:
        arguments: The number of the stop signal, the seconds between it and SIGKILL, and the child's command.

    Returns:
        The exit code to end with.
    """
    stop_signal, grace_s, *command = arguments
    bell = Bell()
    family = Family(command)
    with suppress(BrokenPipeError):  # the parent is dead, which the bell tells
        os.write(1, f"{family.pid}\n".encode())
    asked = False
    while family.is_left() and family.returncode is None and not asked:
        asked = bell.wait()
    deadline = time.monotonic() + float(grace_s)
    if asked:
        family.signal(int(stop_signal))
    while family.is_left() and family.returncode is None and (left_s := deadline - time.monotonic()) > 0:
        bell.wait_for_an_end(left_s)
    deadline = min(deadline, time.monotonic() + ORPHANS_S)
    if family.is_left() and family.returncode is not None:
        family.signal(int(stop_signal))
    while family.is_left() and (left_s := deadline - time.monotonic()) > 0:
        bell.wait_for_an_end(left_s)
    family.kill()
    assert family.returncode is not None
    return family.returncode if family.returncode >= 0 else 128 - family.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
