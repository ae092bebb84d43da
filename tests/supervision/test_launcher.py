"""The launcher alone: what it leaves behind, which is nothing, whoever ends first and however."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rft_core.children import launcher
from rft_core.processes import identity_of, is_gone
from tests.supervision.lives import SLEEPS, STUBBORN, command, identity_at, launcher_of, pid_at, saying, until_gone

ROOT = Path(__file__).parents[2]


@contextmanager
def launched(*what: str, grace_s: float = 5.0, stop_signal: int = signal.SIGINT, **how: object) -> Iterator[subprocess.Popen[bytes]]:
    ours = [sys.executable, "-I", "-S", launcher.__file__, str(int(stop_signal)), str(grace_s), *what]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen(ours, **pipes | how) as process:
        try:
            yield process
        finally:
            process.kill()


def let_go(process: subprocess.Popen[bytes]) -> int:
    process.stdin.close()
    return process.wait()


@pytest.mark.parametrize(("code", "expected"), [("", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_it_ends_as_its_child_does(code: str, expected: int) -> None:
    with launched(*command(code)) as process:
        assert process.wait() == expected


def test_a_command_that_is_not_there_is_named() -> None:
    with launched("/nowhere/program", "argument") as process:
        assert process.wait() == 127
        assert process.stderr.read() == b"/nowhere/program can't be run: No such file or directory\n"


def test_a_file_that_is_no_program_is_named(tmp_path: Path) -> None:
    with launched(str(tmp_path)) as process:
        assert process.wait() == 126
        assert process.stderr.read() == f"{tmp_path} can't be run: Permission denied\n".encode()


def test_the_child_reads_nothing_and_both_its_outputs_go_one_way() -> None:
    with launched(*command("print(sys.stdin.read() == '', flush=True); sys.stderr.write('words')")) as process:
        printed = process.stdout.readline()
        assert process.wait() == 0
        assert int(printed) > 0 and process.stdout.read() == b""
        assert process.stderr.read() == b"True\nwords"


def test_the_child_is_asked_to_stop_when_the_pipe_ends(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))\n" + saying(SLEEPS, tmp_path / "child")
    with launched(*command(code), stop_signal=signal.SIGUSR1) as process:
        pid_at(tmp_path / "child")
        assert let_go(process) == 7


def test_what_the_parent_ignores_or_blocks_the_child_does_not(tmp_path: Path) -> None:
    def as_a_job_in_the_background() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGCHLD, signal.SIGTERM])

    code = f"assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL; {saying(SLEEPS, tmp_path / 'child')}"
    with launched(*command(code), grace_s=600, preexec_fn=as_a_job_in_the_background) as process:
        pid_at(tmp_path / "child")
        assert let_go(process) in (1, 128 + signal.SIGINT)  # KeyboardInterrupt, or before Python could see to it


def test_a_child_that_is_to_stop_as_soon_as_it_starts_is_asked() -> None:
    with launched("sleep", "600", grace_s=600, stdin=subprocess.DEVNULL) as process:
        assert process.wait() == 128 + signal.SIGINT


def test_who_does_not_stop_is_killed_after_the_grace_with_all_that_it_started(tmp_path: Path) -> None:
    code = f"ignore(); parent_of({saying(STUBBORN, tmp_path / 'grandchild')!r}); {saying(STUBBORN, tmp_path / 'child')}"
    with launched(*command(code), grace_s=0.2) as process:
        both = [identity_at(tmp_path / name) for name in ("child", "grandchild")]
        assert let_go(process) == 128 + signal.SIGKILL
        assert [is_gone(identity) for identity in both] == [True, True]


@pytest.mark.parametrize("detached", [False, True], ids=["in the group", "in a session of its own"])
@pytest.mark.parametrize("body", [SLEEPS, STUBBORN], ids=["stops", "does not stop"])
def test_what_an_ended_child_leaves_behind_ends_too(tmp_path: Path, body: str, detached: bool) -> None:
    place = tmp_path / "grandchild"
    code = f"""
parent_of({saying(body, place)!r}, start_new_session={detached})
while not os.path.exists({str(place)!r}): time.sleep(0.01)
time.sleep(0.3)
sys.exit(4)
"""
    with launched(*command(code), grace_s=0.5) as process:
        grandchild = identity_at(place)
        assert process.wait() == 4
        assert is_gone(grandchild)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_stops_the_child(tmp_path: Path, number: signal.Signals) -> None:
    with launched(*command(saying(SLEEPS, tmp_path / "child"))) as process:
        child = identity_at(tmp_path / "child")
        process.send_signal(number)
        assert process.wait() in (1, 128 + signal.SIGINT)
        assert is_gone(child)


def test_the_system_kills_the_child_of_a_killed_launcher(tmp_path: Path) -> None:
    with launched(*command(saying(STUBBORN, tmp_path / "child"))) as process:
        child = identity_at(tmp_path / "child")
        process.kill()
        until_gone(child)


def test_the_death_of_the_parent_shows_even_where_a_fork_of_it_holds_the_pipe(tmp_path: Path) -> None:
    """A worker that was forked, as by `multiprocessing`, has all of its parent's pipes."""
    started = [sys.executable, "-I", "-S", launcher.__file__, "2", "5", *command(saying(SLEEPS, tmp_path / "child"))]
    parent = f"""
process = subprocess.Popen({started!r}, stdin=subprocess.PIPE, start_new_session=True)
if os.fork() == 0:
    say({str(tmp_path / "fork")!r})
    time.sleep(600)
say({str(tmp_path / "parent")!r})
time.sleep(600)
"""
    process = subprocess.Popen(command(parent), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    child, fork = identity_at(tmp_path / "child"), identity_at(tmp_path / "fork")
    ours = identity_of(launcher_of(pid_at(tmp_path / "child")))
    process.kill()
    process.wait()
    until_gone(child, ours)
    assert not is_gone(fork)
    os.kill(pid_at(tmp_path / "fork"), signal.SIGKILL)


def test_it_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; before = {*sys.modules}; import rft_core.children.launcher; print(*{m.split('.')[0] for m in {*sys.modules} - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} - sys.stdlib_module_names == {"rft_core"}


def test_it_runs_as_a_module() -> None:
    ours = [sys.executable, "-m", "rft_core.children.launcher", "2", "5", *command("sys.exit(5)")]
    with subprocess.Popen(ours, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.wait() == 5
