"""Children of one parent: kept going, stopped together, none left; whoever is killed."""

import asyncio
import json
import os
import pickle
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rft_core.children.supervisor import Child, Limits, Supervisor
from rft_core.errors import ChildError, UserError
from rft_core.processes import is_gone
from tests.children import line, started
from tests.supervision.lives import (
    QUICK,
    SLEEPS,
    STUBBORN,
    child,
    command,
    identity_at,
    launcher_of,
    own_children,
    pid_at,
    saying,
    until,
    until_async,
    until_gone,
)


@pytest.fixture
def before() -> set[int]:
    """The children that this process has without those of the test."""
    return own_children()


def others_than(known: set[int]) -> set[int]:
    return own_children() - known


PARENT = """
import asyncio, json, sys
from pathlib import Path
from rft_core.children.supervisor import Child, Limits, Supervisor
folder, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
children = [Child(name, command, {}) for name, command in commands.items()]
asyncio.run(Supervisor(folder, Limits(0, 60.0, 0.1, 5.0), lambda line: print(line, flush=True)).run(children))
"""


def lines_of(log: Path) -> list[str]:
    return log.read_text().splitlines()


def records(folder: Path) -> list[Path]:
    return [*folder.glob("*.json")]


async def test_children_that_end_with_0_are_done(tmp_path: Path, before: set[int]) -> None:
    told: list[str] = []
    children = [child("trainer", "print('trained')"), child("explorer-0", "print('explored')")]
    await Supervisor(tmp_path, QUICK, told.append).run(children)
    assert (lines_of(tmp_path / "trainer.log"), lines_of(tmp_path / "explorer-0.log")) == (["trained"], ["explored"])
    assert sorted(entry.rpartition(" ")[0] for entry in told if "started" in entry) == [
        "explorer-0 started as process",
        "trainer started as process",
    ]
    assert sorted(entry for entry in told if "ended" in entry) == ["explorer-0 ended", "trainer ended"]
    assert records(tmp_path) == [] and not others_than(before)


async def test_a_running_child_is_on_record_and_its_environment_nowhere(tmp_path: Path) -> None:
    code = f"assert os.environ['PASSWORD'] == 'swordfish' and 'PATH' in os.environ; {saying(SLEEPS, tmp_path / 'place')}"
    told: list[str] = []
    run = asyncio.create_task(Supervisor(tmp_path, QUICK, told.append).run([child("trainer", code, PASSWORD="swordfish")]))
    await until_async((tmp_path / "place").exists)
    await until_async((tmp_path / "trainer.json").exists)
    pid, text = pid_at(tmp_path / "place"), (tmp_path / "trainer.json").read_text()
    record = json.loads(text)
    assert [int(record[who].split("|")[-2]) for who in ("launcher", "child")] == [launcher_of(pid), pid]
    assert os.getsid(launcher_of(pid)) == launcher_of(pid)  # Ctrl-C in the terminal is for the parent alone
    assert not is_gone(record["child"]) and not is_gone(record["launcher"])
    run.cancel()
    with suppress(asyncio.CancelledError):
        await run
    assert "swordfish" not in "".join([text, *told, (tmp_path / "trainer.log").read_text(), repr(child("a", "", PASSWORD="swordfish"))])
    assert is_gone(record["child"]) and is_gone(record["launcher"])


async def test_a_failing_child_is_started_again_and_its_log_goes_on(tmp_path: Path) -> None:
    code = f"""
count = len(open({str(tmp_path / "explorer-0.log")!r}).readlines())
print("life", count + 1)
sys.exit(0 if count == 2 else 3)
"""
    told: list[str] = []
    await Supervisor(tmp_path, Limits(2, 60.0, 0.01, 5.0), told.append).run([child("explorer-0", code)])
    assert lines_of(tmp_path / "explorer-0.log") == ["life 1", "life 2", "life 3"]
    assert [entry for entry in told if "started" not in entry] == [
        "explorer-0 ended with exit code 3; restart 1 of 2 in 0.01 s",
        "explorer-0 ended with exit code 3; restart 2 of 2 in 0.02 s",
        "explorer-0 ended",
    ]


async def test_restarts_of_long_ago_do_not_count(tmp_path: Path) -> None:
    code = f"""
count = len(open({str(tmp_path / "explorer-0.log")!r}).readlines())
print("life", count + 1)
sys.exit(0 if count == 2 else 3)
"""
    told: list[str] = []
    await Supervisor(tmp_path, Limits(1, 0.0, 0.01, 5.0), told.append).run([child("explorer-0", code)])
    assert [entry for entry in told if "restart" in entry] == ["explorer-0 ended with exit code 3; restart 1 of 1 in 0.01 s"] * 2


async def test_a_child_beyond_the_limits_ends_the_run_in_one_line(tmp_path: Path, before: set[int]) -> None:
    fails = f"""
print("a line of an earlier thought")
while not os.path.exists({str(tmp_path / "place")!r}): time.sleep(0.01)
sys.stderr.write("10%\\r50%\\r\\x1b[31mValueError: no such thing\\x1b[0m\\n\\n")
sys.exit(3)
"""
    children = [child("trainer", saying(SLEEPS, tmp_path / "place")), child("explorer-0", fails)]
    with pytest.raises(ChildError) as raised:
        await Supervisor(tmp_path, Limits(1, 60.0, 0.01, 5.0)).run(children)
    log = tmp_path / "explorer-0.log"
    assert str(raised.value) == (
        f"explorer-0 ended with exit code 3 after 1 restart within 60 s: ValueError: no such thing; its log is {log}"
    )
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert not others_than(before) and records(tmp_path) == []


async def test_the_error_names_the_signal_and_tells_only_of_the_last_life(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text("of another run\n")
    with pytest.raises(ChildError, match="^trainer was ended by SIGSEGV: it wrote nothing; its log is "):
        await Supervisor(tmp_path, QUICK).run([child("trainer", "os.kill(os.getpid(), signal.SIGSEGV)")])


async def test_a_command_that_can_not_be_run_is_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="^trainer ended with exit code 127: /nowhere/program can't be run: No such file or directory; "):
        await Supervisor(tmp_path, QUICK).run([Child("trainer", ["/nowhere/program"], {})])


async def test_the_others_are_stopped_when_the_trainer_is_done(tmp_path: Path, before: set[int]) -> None:
    trains = f"while not os.path.exists({str(tmp_path / 'place')!r}): time.sleep(0.01)"
    told: list[str] = []
    children = [child("explorer-0", saying(SLEEPS, tmp_path / "place")), child("trainer", trains)]
    await Supervisor(tmp_path, QUICK, told.append).run(children, done_when="trainer")
    assert told[-2] == "trainer ended" and told[-1].startswith("explorer-0 stopped: it ")
    assert not others_than(before) and records(tmp_path) == []


async def test_the_trainer_goes_on_when_the_others_have_ended(tmp_path: Path) -> None:
    explores = f"open({str(tmp_path / 'place')!r}, 'w').close()"
    trains = f"""
while not os.path.exists({str(tmp_path / "place")!r}): time.sleep(0.01)
time.sleep(0.3)
"""
    told: list[str] = []
    await Supervisor(tmp_path, QUICK, told.append).run([child("explorer-0", explores), child("trainer", trains)], done_when="trainer")
    assert told[2:] == ["explorer-0 ended", "trainer ended"]


async def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    told: list[str] = []
    code = f"if os.path.exists({str(tmp_path / 'place')!r}): sys.exit(0)\n{saying(SLEEPS, tmp_path / 'place')}"
    run = asyncio.create_task(Supervisor(tmp_path, Limits(1, 60.0, 0.01, 5.0), told.append).run([child("explorer-0", code)]))
    await until_async((tmp_path / "place").exists)
    os.kill(pid_at(tmp_path / "place"), signal.SIGKILL)
    await run
    assert told[1] == "explorer-0 was ended by SIGKILL; restart 1 of 1 in 0.01 s"


async def test_a_child_whose_launcher_is_killed_is_started_again_and_leaves_nothing(tmp_path: Path) -> None:
    first, orphan = tmp_path / "place", tmp_path / "grandchild"
    code = f"""
if os.path.exists({str(first)!r}): sys.exit(0)
parent_of({saying(STUBBORN, orphan)!r}, start_new_session=True)
while not os.path.exists({str(orphan)!r}): time.sleep(0.01)
{saying(STUBBORN, first)}
"""
    told: list[str] = []
    run = asyncio.create_task(Supervisor(tmp_path, Limits(1, 60.0, 0.01, 5.0), told.append).run([child("explorer-0", code)]))
    await until_async(first.exists)
    both = [identity_at(first), identity_at(orphan)]
    os.kill(launcher_of(pid_at(first)), signal.SIGKILL)
    await run
    assert told[1] == "explorer-0 lost its launcher to SIGKILL; restart 1 of 1 in 0.01 s"
    assert [is_gone(identity) for identity in both] == [True, True]


async def test_a_cancellation_stops_all_children(tmp_path: Path, before: set[int]) -> None:
    names = ("trainer", "explorer-0", "explorer-1")
    told: list[str] = []
    children = [child(name, saying(SLEEPS, tmp_path / name)) for name in names]
    run = asyncio.create_task(Supervisor(tmp_path, QUICK, told.append).run(children))
    await until_async(lambda: all((tmp_path / name).exists() for name in names))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sorted(entry.split(": it ")[0] for entry in told if "stopped" in entry) == sorted(f"{name} stopped" for name in names)
    assert not others_than(before) and records(tmp_path) == []


async def test_a_cancellation_kills_who_does_not_stop(tmp_path: Path) -> None:
    told: list[str] = []
    code = f"parent_of({saying(STUBBORN, tmp_path / 'grandchild')!r}); {saying(STUBBORN, tmp_path / 'child')}"
    run = asyncio.create_task(Supervisor(tmp_path, Limits(0, 60.0, 0.1, 0.2), told.append).run([child("trainer", code)]))
    await until_async(lambda: (tmp_path / "child").exists() and (tmp_path / "grandchild").exists())
    both = [identity_at(tmp_path / name) for name in ("child", "grandchild")]
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told[-1] == "trainer stopped: it was ended by SIGKILL"
    assert [is_gone(identity) for identity in both] == [True, True]


async def test_a_second_cancellation_does_not_wait(tmp_path: Path) -> None:
    told: list[str] = []
    code = f"parent_of({saying(STUBBORN, tmp_path / 'grandchild')!r}); {saying(STUBBORN, tmp_path / 'child')}"
    run = asyncio.create_task(Supervisor(tmp_path, Limits(0, 60.0, 0.1, 600.0), told.append).run([child("trainer", code)]))
    await until_async(lambda: (tmp_path / "child").exists() and (tmp_path / "grandchild").exists())
    both = [identity_at(tmp_path / name) for name in ("child", "grandchild")]
    run.cancel()
    await asyncio.sleep(0.1)
    assert not run.done()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert told[-1] == "trainer stopped: it lost its launcher to SIGKILL"
    assert [is_gone(identity) for identity in both] == [True, True] and records(tmp_path) == []


async def test_a_cancellation_while_a_child_waits_for_its_restart_ends_the_run(tmp_path: Path) -> None:
    told: list[str] = []
    run = asyncio.create_task(Supervisor(tmp_path, Limits(1, 60.0, 600.0, 5.0), told.append).run([child("trainer", "sys.exit(1)")]))
    await until_async(lambda: "trainer ended with exit code 1; restart 1 of 1 in 600 s" in told)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert len(told) == 2


async def test_a_cancellation_right_after_the_start_leaves_nothing(tmp_path: Path, before: set[int]) -> None:
    run = asyncio.create_task(Supervisor(tmp_path, QUICK).run([child("trainer", saying(SLEEPS, tmp_path / "child"))]))
    await until_async(lambda: others_than(before))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not others_than(before) and records(tmp_path) == []


async def test_a_child_that_can_not_be_written_down_does_not_run(tmp_path: Path, before: set[int]) -> None:
    (tmp_path / "trainer.json").mkdir()
    with pytest.raises(UserError, match="^can't write below "):
        await Supervisor(tmp_path, QUICK).run([child("trainer", saying(SLEEPS, tmp_path / "child"))])
    assert not others_than(before)


@pytest.mark.parametrize(("names", "done_when"), [(["a", "a"], None), (["a"], "b"), (["../a"], None)])
async def test_names_that_can_not_be_told_apart_are_refused(tmp_path: Path, names: list[str], done_when: str | None) -> None:
    with pytest.raises(ValueError, match="name"):
        await Supervisor(tmp_path, QUICK).run([Child(name, ["true"], {}) for name in names], done_when)


def test_a_killed_parent_takes_everything_with_it(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("trainer", "explorer", "grandchild")]
    trainer = f"parent_of({saying(SLEEPS, places[2])!r}); {saying(SLEEPS, places[0])}"
    commands = {"trainer": command(trainer), "explorer-0": command(saying(SLEEPS, places[1]))}
    with started(PARENT, tmp_path / "children", json.dumps(commands)) as parent:
        everyone = [identity_at(place) for place in places]
        parent.kill()
        until_gone(*everyone)


def test_ctrl_c_in_the_terminal_stops_everything(tmp_path: Path) -> None:
    commands = {"trainer": command(saying(SLEEPS, tmp_path / "child"))}
    with started(PARENT, tmp_path / "children", json.dumps(commands)) as parent:
        trainer = identity_at(tmp_path / "child")
        until(lambda: "started" in line(parent))
        parent.send_signal(signal.SIGINT)
        until(lambda: "trainer stopped" in line(parent))
        parent.wait()
        assert is_gone(trainer) and records(tmp_path / "children") == []
