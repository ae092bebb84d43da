"""What the next parent ends of what a killed one left."""

import json
import os
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path

from rft_core.children.records import MARK, Record, reap
from rft_core.processes import identity_of, is_gone, this_process
from tests.children import leave_dead, started
from tests.supervision.lives import SLEEPS, STUBBORN, command, identity_at, pid_at, saying, until_gone

ENDS = "|".join([*this_process().identity.split("|")[:-1], "1"])
"""An identity of this machine whose process is gone: its number belongs to another one now."""


def sleeper(place: Path, mark: str, code: str = STUBBORN) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command(saying(code, place)), env={**os.environ, MARK: mark}, start_new_session=True)


def test_this_process_is_who_it_says() -> None:
    assert identity_of(os.getpid()) == this_process().identity


def test_who_has_ended_has_no_identity() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert identity_of(process.pid) == ""


def test_what_lives_is_killed_with_its_group_and_forgotten(tmp_path: Path) -> None:
    code = f"parent_of({saying(STUBBORN, tmp_path / 'grandchild')!r}, env={{}}); {saying(STUBBORN, tmp_path / 'child')}"
    with subprocess.Popen(command(code), env={**os.environ, MARK: f"{tmp_path} one"}, start_new_session=True) as process:
        child, grandchild = identity_at(tmp_path / "child"), identity_at(tmp_path / "grandchild")
        Record(ENDS, child, f"{tmp_path} another").write(tmp_path / "trainer.json")
        Record(ENDS, ENDS, f"{tmp_path} a third").write(tmp_path / "explorer-0.json")
        assert reap(tmp_path) == ["trainer"]
        assert is_gone(child)
        until_gone(grandchild)
        assert process.wait() == -signal.SIGKILL
    assert [*tmp_path.glob("*.json")] == [] and reap(tmp_path) == []


def test_what_outlived_its_launcher_and_its_child_is_found_by_its_mark(tmp_path: Path) -> None:
    with sleeper(tmp_path / "orphan", f"{tmp_path} one") as orphan, sleeper(tmp_path / "stranger", f"{tmp_path} two", SLEEPS) as stranger:
        identity, other = identity_at(tmp_path / "orphan"), identity_at(tmp_path / "stranger")
        Record(ENDS, ENDS, f"{tmp_path} one").write(tmp_path / "trainer.json")
        assert reap(tmp_path) == ["trainer"]
        assert is_gone(identity) and not is_gone(other)
        stranger.kill()
        assert orphan.wait() == -signal.SIGKILL


def test_another_process_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    with sleeper(tmp_path / "stranger", f"{tmp_path} one", SLEEPS) as stranger:
        pid_at(tmp_path / "stranger")
        machine, pid, _ = identity_of(stranger.pid).rsplit("|", 2)
        Record(f"{machine}|{pid}|1", f"{machine}|{pid}|1", f"{tmp_path} two").write(tmp_path / "trainer.json")
        assert reap(tmp_path) == []
        assert stranger.poll() is None and not (tmp_path / "trainer.json").exists()
        stranger.kill()


def test_records_of_other_machines_stay(tmp_path: Path) -> None:
    record = Record("elsewhere|boot|pid:[1]|4711|12345", "elsewhere|boot|pid:[1]|4712|12345", f"{tmp_path} one")
    record.write(tmp_path / "trainer.json")
    assert reap(tmp_path) == []
    assert json.loads((tmp_path / "trainer.json").read_text()) == asdict(record)


def test_a_launcher_that_still_lives_is_ended_too(tmp_path: Path) -> None:
    with sleeper(tmp_path / "launcher", f"{tmp_path} one") as launcher:
        Record(identity_at(tmp_path / "launcher"), "", f"{tmp_path} two").write(tmp_path / "trainer.json")
        assert reap(tmp_path) == ["trainer"]
        assert launcher.wait() == -signal.SIGKILL


def test_zombies_are_not_waited_for(tmp_path: Path) -> None:
    with started("import sys; sys.stdin.read()", **{MARK: f"{tmp_path} one"}) as process:
        identity = identity_of(process.pid)
        leave_dead(process)
        Record(ENDS, identity, f"{tmp_path} one").write(tmp_path / "trainer.json")
        assert reap(tmp_path) == []


def test_no_folder_holds_nothing(tmp_path: Path) -> None:
    assert reap(tmp_path / "never") == []
