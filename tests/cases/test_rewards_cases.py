"""What went wrong with rewards, groups and filters for users of other systems: rows B1-B15 of the list of cases."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rft_core.config import ExtensionSpec, RewardSpec
from rft_core.errors import DeadlineError, RewardError
from rft_core.operators.apply import apply, build_operators
from rft_core.operators.base import Attempt, Group
from rft_core.rewards.base import rewards
from rft_core.rewards.combine import RewardSet
from rft_core.rewards.pool import ScorerPool
from rft_core.types import Reward, StopReason, Task
from tests.operators.groups import group, row

TASK = Task("t", (), answer="840")
PATIENT_S = 60.0


def batched(task: Task, answer: str) -> list[float]:
    return [1.0]


def unsure(task: Task, answer: str) -> None:
    return None


def odd(task: Task, answer: str) -> float:
    return float(answer)


def user_rewards(folder: Path, code: str) -> Path:
    (folder / "users_own.py").write_text(code)
    return folder


def test_b01_wrong_number_of_rewards() -> None:
    """trl #6533: a function that returns [1.0] for three completions must be an error that names it, never a broadcast."""
    reward_set = RewardSet([RewardSpec(name=f"{__name__}:batched")])
    said = r"reward 'batched' returned the list \[1.0\]; a reward returns one finite number for one answer"
    for answer in ("a", "b", "c"):
        with pytest.raises(RewardError, match=said):
            reward_set(TASK, answer)


def test_b02_none_rewards_stay_out_of_the_group() -> None:
    """trl PR #5902: with rewards [1, 0, None] the baseline is over {1, 0}; the third is not trained and is counted."""
    reward = Reward(None)
    one = group("a", [1.0, 0.0, reward.value])
    applied = apply((one,), build_operators([ExtensionSpec(name="drop_no_signal")], max_tokens=10))
    assert [attempt.reward for attempt in applied.groups[0].live()] == [1.0, 0.0]
    assert len(applied.groups[0].attempts) == 3
    assert applied.account[0].attempts_in == 2


def test_b02_a_reward_that_has_nothing_to_say_leaves_the_total_open() -> None:
    """trl PR #5902: None is neither 0 nor NaN, also beside rewards that do have a value."""
    reward = RewardSet([RewardSpec(name="exact"), RewardSpec(name=f"{__name__}:unsure")])(TASK, "840")
    assert (reward.value, reward.parts) == (None, {"exact": 1.0})


def test_b04_scoring_in_another_thread() -> None:
    """verl PR #5635, trl PR #5281, Math-Verify #55: signal.alarm works in the main thread alone; a right answer still scores 1."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        assert thread.submit(RewardSet([RewardSpec(name="math")]), TASK, r"\boxed{840}").result().value == 1.0


async def test_b05_one_score_of_eight_never_returns(tmp_path: Path) -> None:
    """verl PR #6673: the one times out with a reason, the other seven are scored."""
    code = "import time\ndef slow(task, answer):\n    while answer == '3':\n        time.sleep(60)\n    return float(answer)\n"
    async with ScorerPool([RewardSpec(name="users_own:slow")], 2, folder=user_rewards(tmp_path, code)) as pool:
        limits = [0.5 if number == 3 else PATIENT_S for number in range(8)]
        scored = await asyncio.gather(*(pool.score(TASK, str(i), limits[i]) for i in range(8)), return_exceptions=True)
    assert isinstance(scored[3], DeadlineError)
    assert "reward 'slow' did not end within 0.5 s" in str(scored[3])
    assert [reward.value for reward in scored if isinstance(reward, Reward)] == [0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]


async def test_b06_children_of_a_scorer_are_killed_and_reaped(tmp_path: Path) -> None:
    """verl PR #1466: a scorer that forks a child that sleeps leaves neither the child nor a zombie, and scoring goes on."""
    code = f"""
import os, time
def forks(task, answer):
    child = os.fork()
    if child == 0:
        time.sleep(600)
    with open({str(tmp_path / "pids")!r}, "a") as file:
        print(child, os.getpid(), file=file)
    return 1.0
"""
    async with ScorerPool([RewardSpec(name="users_own:forks")], 1, folder=user_rewards(tmp_path, code)) as pool:
        for _ in range(3):
            assert (await pool.score(TASK, "", PATIENT_S)).value == 1.0
        pairs = [tuple(map(int, line.split())) for line in (tmp_path / "pids").read_text().splitlines()]
        assert len({scorer for _, scorer in pairs}) == 1
        assert psutil.Process(pairs[0][1]).children() == []
        assert not any(psutil.pid_exists(child) for child, _ in pairs)
    assert not psutil.pid_exists(pairs[0][1])


async def test_b11_every_sample_gets_its_own_outcome(tmp_path: Path) -> None:
    """ROLL #125: a sample that takes another path out of the scorer must not shift the others."""
    code = """
def uneven(task, answer):
    number = int(answer)
    if number % 4 == 1:
        return None
    if number % 4 == 2:
        raise ValueError(answer)
    return number
"""
    async with ScorerPool([RewardSpec(name="users_own:uneven")], 2, folder=user_rewards(tmp_path, code)) as pool:
        scored = await asyncio.gather(*(pool.score(TASK, str(i), PATIENT_S) for i in range(12)), return_exceptions=True)
    for number, outcome in enumerate(scored):
        if number % 4 == 2:
            assert f"raised ValueError: {number} " in str(outcome)
        else:
            assert isinstance(outcome, Reward)
            assert outcome.value == (None if number % 4 == 1 else float(number))


def test_b13_an_end_token_in_the_prompt_hides_nothing() -> None:
    """trl PR #6813: with an end-of-sequence token in the chat prompt and none in the completion the penalties still apply."""
    end = 2
    cut = row("a", length=10, stop=StopReason.LENGTH)
    tokens = (end,) * cut.prompt_length + (7,) * 10
    attempt = Attempt((replace(cut, tokens=tokens),), 1.0)
    groups = (Group("g", (attempt,)),)
    shaped = apply(groups, build_operators([ExtensionSpec(name="soft_overlong", args={"cache_tokens": 4})], max_tokens=10))
    assert shaped.groups[0].attempts[0].reward == 0.0
    dropped = apply(groups, build_operators([ExtensionSpec(name="drop_truncated")], max_tokens=10))
    assert dropped.groups[0].attempts[0].dropped_by == "drop_truncated"


@pytest.mark.parametrize("answer", ["nan", "inf", "-inf"])
def test_rewards_that_are_not_finite_never_reach_a_group(answer: str) -> None:
    """trl PR #5773, NeMo-RL #1518: NaN rewards poison a group's mean; here they are a failed attempt that names the function."""
    with pytest.raises(RewardError, match=f"reward 'odd' returned {answer}"):
        RewardSet([RewardSpec(name=f"{__name__}:odd")])(TASK, answer)


@pytest.mark.parametrize("answer", ["", " ", "<answer></answer>"])
@pytest.mark.parametrize("name", ["exact", "positions", "numeric", "math"])
def test_an_empty_answer_is_worth_nothing(name: str, answer: str) -> None:
    """Visual-RFT #176: `gt in ans or ans in gt` gave an empty answer full marks, and the model learned to say nothing."""
    value = rewards.build(name, {}, "rewards.0")(TASK, answer).value
    assert value == 0.0
    assert math.copysign(1.0, value) == 1.0
