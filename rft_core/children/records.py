"""What is written down of a running child, so that whatever is left of it can be found and ended, also by the next parent."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from rft_core.disk import write_whole
from rft_core.errors import ChildError
from rft_core.processes import is_gone, this_process

MARK = "TIDEMILL_CHILD"
"""The environment variable that every process of a child carries; its value is in the child's record and nowhere else."""

PATIENCE_S = 30.0
"""Seconds after SIGKILL in which a process must be gone."""

PAUSE_S = 0.02
"""Seconds between two looks at what SIGKILL was sent to; who is not one's own child can't be waited for."""


@dataclass(frozen=True, slots=True)
class Record:
    """One start of a child."""

    launcher: str
    """The identity of its launcher, as `rft_core.processes` has it."""
    child: str
    """The identity of the child, which leads its process group; empty where it ended before it could be seen."""
    mark: str
    """What its processes have as `MARK` in their environment: some outlive both of the above, if those are killed."""

    def write(self, path: Path) -> None:
        """Write it whole or not at all."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    def is_of_this_machine(self) -> bool:
        """Whether its processes can be seen from here: the same boot of the same machine."""
        return _machine(self.launcher) == _machine(this_process().identity)

    def kill(self) -> bool:
        """Send SIGKILL to all that is left of it; whether anything was."""
        marked = [process for process in psutil.process_iter() if self._marked(process)]
        leads = self.child != "" and not is_gone(self.child)
        group = _pid(self.child) if self.child else 0
        if leads or any(_group_of(process) == group for process in marked):
            with suppress(ProcessLookupError, PermissionError):  # just ended, or runs as another user, which shows as not ending
                os.killpg(group, signal.SIGKILL)
        launches = not is_gone(self.launcher)
        if launches:
            with suppress(ProcessLookupError):
                os.kill(_pid(self.launcher), signal.SIGKILL)
        for process in marked:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        return leads or launches or bool(marked)

    def _marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it just ended, or is another user's
            return False


def reap(folder: Path) -> list[str]:
    """End what is left of the children of a parent that was killed.

    Only for who holds the run, as that parent did: it would end the children of a live one too. The records go; those of
    another machine, or of an earlier boot of this one, stay.

    Args:
        folder: Where the parent's supervisor kept its records.

    Returns:
        The names of the children of which something was left.

    Raises:
        ChildError: Something does not end within `PATIENCE_S`.
    """
    reaped = []
    for path in sorted(folder.glob("*.json")):
        record = Record(**json.loads(path.read_text(encoding="utf-8")))
        if not record.is_of_this_machine():
            continue
        deadline = time.monotonic() + PATIENCE_S
        was_left = is_left = record.kill()
        while is_left:
            if time.monotonic() > deadline:
                raise unkillable(path.stem, path)
            time.sleep(PAUSE_S)
            is_left = record.kill()
        path.unlink()
        reaped += [path.stem] if was_left else []
    return reaped


def unkillable(name: str, record: Path) -> ChildError:
    """The error for what SIGKILL does not end."""
    return ChildError(f"{name}: its processes do not end, {PATIENCE_S:g} s after SIGKILL", f"{record} names them; see what they wait for")


def _machine(identity: str) -> str:
    return identity.rsplit("|", 2)[0]


def _pid(identity: str) -> int:
    return int(identity.rsplit("|", 2)[1])


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None
