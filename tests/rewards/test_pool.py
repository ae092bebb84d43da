"""The scorer pool with real processes, really killed."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rft_core.config import RewardSpec
from rft_core.errors import ConfigError, DeadlineError, RewardError
from rft_core.rewards.pool import ScorerPool
from rft_core.types import Reward, Task

TASK = Task("t", (), answer="4", facts={"echo": "a\0\ud800\n"})
SPECS = [RewardSpec(name="exact", weight=0.0), RewardSpec(name="misbehaving:act")]
HERE = Path(__file__).parent
PATIENT_S = 60.0
"""A limit that is only reached when something is broken."""


def pool(workers: int = 1) -> ScorerPool:
    return ScorerPool(SPECS, workers, folder=HERE)


def exists(pid: int) -> bool:
    return psutil.pid_exists(pid)


def eventually(condition: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + PATIENT_S
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.02)
    return condition()


async def outcome(scorers: ScorerPool, answer: str, timeout_s: float = PATIENT_S) -> Reward | str:
    try:
        return await scorers.score(TASK, answer, timeout_s)
    except (DeadlineError, RewardError) as error:
        return f"{type(error).__name__}: {error}"


async def test_answers_are_scored_side_by_side_and_come_back_to_whom_they_belong() -> None:
    async with ScorerPool([RewardSpec(name="numeric"), RewardSpec(name="exact", weight=0.5)], workers=2) as scorers:
        rewards = await asyncio.gather(*(scorers.score(TASK, str(number), PATIENT_S) for number in range(64)))
    assert [number for number, reward in enumerate(rewards) if reward.value == 1.5] == [4]
    assert {reward.value for reward in rewards} == {0.0, 1.5}


async def test_a_worker_has_no_torch_no_secrets_and_a_clean_channel(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "TIDEMILL_API_KEY", "MLFLOW_TRACKING_URI", "TIDEMILL_CACHE"):
        monkeypatch.setenv(name, "x")
    async with pool() as scorers:
        seen = {
            answer: (await scorers.score(TASK, answer, PATIENT_S)).value
            for answer in (
                "modules torch",
                "modules transformers",
                "modules mlflow",
                "variable AWS_SECRET_ACCESS_KEY",
                "variable HF_TOKEN",
                "variable TIDEMILL_API_KEY",
                "variable MLFLOW_TRACKING_URI",
                "variable TIDEMILL_CACHE",
                "variable PATH",
                "print",
                f"echo {TASK.facts['echo']}",
            )
        }
    assert [answer for answer, value in seen.items() if value] == ["variable TIDEMILL_CACHE", "variable PATH", "print", "echo a\0\ud800\n"]
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "printed by a reward\nwritten by a reward" in printed.err


@pytest.mark.parametrize("answer", ["hang", "spin"])
async def test_a_reward_that_never_returns_is_cut_off_and_those_behind_it_go_on(answer: str) -> None:
    """`spin` is a regular expression that backtracks for ever, with the interpreter's lock held."""
    async with pool() as scorers:
        first = asyncio.create_task(outcome(scorers, answer, 0.3))
        behind = [asyncio.create_task(outcome(scorers, "fine")) for _ in range(3)]
        late = "DeadlineError: reward 'act' did not end within 0.3 s and was killed; make it quicker, or raise the time limit"
        assert await first == late
        assert [reward.value for reward in await asyncio.gather(*behind) if isinstance(reward, Reward)] == [1.0] * 3


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("exit", "reward 'act' ended the scorer's process (exit code 3)"),
        ("fork_and_exit", "reward 'act' ended the scorer's process (exit code 4)"),
        ("crash", "reward 'act' ended the scorer's process (signal SIGSEGV)"),
        ("wrong", "reward 'act' returned the list [1.0]"),
        ("dance", "reward 'act' raised KeyError: 'dance' (misbehaving.py:"),
    ],
)
async def test_a_reward_that_breaks_is_named_and_the_worker_goes_on(answer: str, said: str) -> None:
    async with pool() as scorers:
        assert str(await outcome(scorers, answer)).startswith(f"RewardError: {said}")
        assert await outcome(scorers, "fine") == Reward(1.0, {"exact": 0.0, "act": 1.0}, "exact: said 'fine', not '4'")


async def test_a_reward_may_use_processes_but_not_leave_them_behind(tmp_path: Path) -> None:
    async with pool() as scorers:
        assert (await scorers.score(TASK, "pool", PATIENT_S)).value == 3.0
        assert (await scorers.score(TASK, f"children {tmp_path / 'pids'}", PATIENT_S)).value == 1.0
        left = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert len(left) == 2
        assert not any(map(exists, left))


async def test_a_score_that_is_cancelled_ends_its_worker_and_others_take_its_place(tmp_path: Path) -> None:
    async with pool() as scorers:
        stuck = asyncio.create_task(scorers.score(TASK, f"children_and_hang {tmp_path / 'pids'}", PATIENT_S))
        behind = asyncio.create_task(scorers.score(TASK, "fine", PATIENT_S))
        await asyncio.to_thread(eventually, lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
        stuck.cancel()
        assert (await behind).value == 1.0
        with pytest.raises(asyncio.CancelledError):
            await stuck
    assert not any(exists(int(pid)) for pid in (tmp_path / "pids").read_text().split())


async def test_a_worker_that_is_killed_from_outside_is_replaced() -> None:
    async with pool() as scorers:
        scorer = psutil.Process(int((await scorers.score(TASK, "pid", PATIENT_S)).value or 0))
        keeper = scorer.parent()
        assert keeper is not None
        hanging = asyncio.create_task(outcome(scorers, "hang"))
        await asyncio.sleep(0.1)
        keeper.kill()
        assert await hanging == "RewardError: a worker of the scorer pool was killed from outside; the machine may be out of memory"
        assert (await scorers.score(TASK, "fine", PATIENT_S)).value == 1.0
        assert eventually(lambda: not scorer.is_running() or scorer.status() == psutil.STATUS_ZOMBIE)


async def test_closing_ends_everything_and_whoever_waits_is_told() -> None:
    scorers = pool()
    pid = int((await scorers.score(TASK, "pid", PATIENT_S)).value or 0)
    waiting = [asyncio.create_task(outcome(scorers, "hang")) for _ in range(2)]
    await asyncio.sleep(0.1)
    await scorers.close()
    closed = "RewardError: the scorer pool is closed; score before `close`"
    assert [*await asyncio.gather(*waiting), await outcome(scorers, "fine")] == [closed] * 3
    assert not exists(pid)


async def test_no_time_left_is_a_deadline_that_costs_no_worker() -> None:
    async with pool() as scorers:
        before = (await scorers.score(TASK, "pid", PATIENT_S)).value
        assert str(await outcome(scorers, "fine", -0.1)).startswith("DeadlineError: no time was left for scoring")
        assert (await scorers.score(TASK, "pid", PATIENT_S)).value == before


@pytest.mark.parametrize(
    ("module", "kind", "said"),
    [
        ("raise ValueError('at import')", ConfigError, "it must load without an error (ValueError: at import)"),
        ("import os; os._exit(9)", RewardError, "loading the rewards ended the scorer's process (exit code 9)"),
        ("", ConfigError, "package.module:Name must be importable here"),
    ],
)
async def test_rewards_that_can_not_be_loaded_say_so_each_time(tmp_path: Path, module: str, kind: type[Exception], said: str) -> None:
    (tmp_path / "unloadable.py").write_text(module)
    async with ScorerPool([RewardSpec(name="unloadable:act")], 1, folder=tmp_path) as scorers:
        for _ in range(2):
            with pytest.raises(kind) as error:
                await scorers.ready()
            assert said in str(error.value)


async def test_a_users_folder_does_not_take_the_place_of_installed_packages(tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ValueError('shadowed')")
    (tmp_path / "own_reward.py").write_text("def half(task, answer):\n    return 0.5\n")
    async with ScorerPool([RewardSpec(name="own_reward:half"), RewardSpec(name="math")], 1, folder=tmp_path) as scorers:
        assert (await scorers.score(TASK, "4", PATIENT_S)).value == 1.5


def test_workers_and_what_they_started_end_with_a_killed_parent(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"""
    import asyncio
    from pathlib import Path
    from rft_core.config import RewardSpec
    from rft_core.rewards.pool import ScorerPool
    from rft_core.types import Task

    async def main():
        async with ScorerPool([RewardSpec(name="misbehaving:act")], 2, folder=Path({str(HERE)!r})) as scorers:
            hanging = [scorers.score(Task("t", ()), f"children_and_hang {pids}-{{number}}", 600.0) for number in range(2)]
            await asyncio.gather(*hanging)

    asyncio.run(main())
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    files = [Path(f"{pids}-{number}") for number in range(2)]
    assert eventually(lambda: all(file.exists() and len(file.read_text().split()) == 2 for file in files))
    workers = psutil.Process(parent.pid).children(recursive=True)
    started = [int(pid) for file in files for pid in file.read_text().split()]
    assert all(map(exists, started))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: not any(map(exists, started)))
    assert eventually(lambda: not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers))
