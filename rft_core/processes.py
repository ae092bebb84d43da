"""Which process this is, and whether another one still lives."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as ledgers and messages name it."""

    name: str
    """For people, as in `process 4711 on mill`."""
    identity: str
    """By which another process of the same machine can see whether it lives."""


def this_process() -> Process:
    """The process that asks."""
    pid = os.getpid()
    return Process(f"process {pid} on {socket.gethostname()}", identity_of(pid))


def identity_of(pid: int) -> str:
    """The identity of a process of this machine; empty if it has ended."""
    try:
        started, _ = _look_at(pid)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return ""
    return f"{_machine()}|{pid}|{started}"


def is_gone(identity: str) -> bool:
    """Whether a process is known to have ended; false where that can't be seen from here, as for one of another machine."""
    machine, pid, started = identity.rsplit("|", 2) if identity.count("|") > 1 else ("", "", "")
    if machine != _machine():
        return False
    try:
        now_started, is_zombie = _look_at(int(pid))
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return not _exists(int(pid))
    return now_started != started or is_zombie


def _look_at(pid: int) -> tuple[str, bool]:
    """When a process began, and whether it ended and only waits for its parent to notice.

    The time is in ticks since the machine started where the system tells, since those don't move when the clock is set.
    """
    if not Path("/proc/self/stat").exists():
        process = psutil.Process(pid)
        return f"{process.create_time():.2f}", process.status() == psutil.STATUS_ZOMBIE
    facts = Path(f"/proc/{pid}/stat").read_bytes()
    state, *others = facts.rpartition(b")")[2].split()  # what comes before is its name, which may hold anything
    return others[18].decode(), state in (b"Z", b"X")


def _exists(pid: int) -> bool:
    """Whether there is a process of this number. Those of other users may be hidden under /proc; signals still reach for them."""
    try:
        os.kill(pid, 0)
    except PermissionError:  # it is another user's
        return True
    except ProcessLookupError:
        return False
    return True


def _machine() -> str:
    """Names this boot of this machine, and the namespace in which its process ids count."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    return "|".join(
        [
            socket.gethostname(),
            boot.read_text().strip() if boot.exists() else "",
            str(namespace.readlink()) if namespace.exists() else "",
        ]
    )
