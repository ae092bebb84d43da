"""Whether a process of this machine lives: alive, a zombie, gone, or another one that got its number."""

import os

import pytest

from rft_core.processes import is_gone, this_process
from tests.children import leave_dead, line, started

CHILD = """
import ctypes, sys
from rft_core.processes import this_process
ctypes.CDLL(None).prctl(15, b"\\xff) Z 1 (", 0, 0, 0)  # names itself so as to mislead whoever reads what the system says of it
print(this_process().identity, flush=True)
sys.stdin.read()
"""


def test_a_process_knows_itself() -> None:
    assert this_process() == this_process()
    assert this_process().name.startswith(f"process {os.getpid()} on ")
    assert not is_gone(this_process().identity)


def test_a_child_lives_until_it_ends_and_is_gone_before_anybody_waits_for_it() -> None:
    with started(CHILD) as child:
        identity = line(child)
        assert not is_gone(identity)
        leave_dead(child)
        assert is_gone(identity)
        child.wait()
        assert is_gone(identity)


def test_another_process_of_the_same_number_is_not_taken_for_it() -> None:
    machine, pid, _ = this_process().identity.rsplit("|", 2)
    assert is_gone(f"{machine}|{pid}|1")


@pytest.mark.parametrize("identity", ["", "elsewhere|1|1", "elsewhere|boot|pid:[1]|4711|12345"])
def test_nobody_knows_of_the_processes_of_another_machine(identity: str) -> None:
    assert not is_gone(identity)


def test_a_process_that_the_system_hides_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = this_process().identity

    def look_at(pid: int) -> tuple[str, bool]:
        raise FileNotFoundError(f"/proc/{pid}/stat")

    monkeypatch.setattr("rft_core.processes._look_at", look_at)
    assert not is_gone(hidden)
