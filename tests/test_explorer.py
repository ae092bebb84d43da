"""The explorer against a scripted engine and real scorers: whatever an attempt does, it is a row and the others go on."""

from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer import StoredGroup
from rft_core.catalog import Lease
from rft_core.config import RewardSpec
from rft_core.engines import engines
from rft_core.environments import environments
from rft_core.errors import ConfigError, RolloutError
from rft_core.explorer import Explorer, Sampling, Scorers, Unscored
from rft_core.rewards.pool import ScorerPool
from rft_core.tokens import Tokenizer
from rft_core.types import Completion, GenerationRequest, Message, Source, StopReason, Task, digest, seed_of
from tests.buffer.table import Table, group_id
from tests.explorer_parts import MOODY

SAMPLING = Sampling(temperature=0.7, max_tokens=4, timeout_s=60.0)
ROOT = Path(__file__).parents[1]


@pytest.fixture
def table(tmp_path: Path) -> Any:
    opened = Table(tmp_path / "run")
    yield opened
    opened.close()


def task(question: str = "1+2=", mood: str = "fine", answer: str | None = "3") -> Task:
    return Task(digest("task", question, mood), (Message("text", question),), answer, response="3", facts={"mood": mood})


@dataclass
class Bench:
    """An explorer over a scripted engine, and the table that it fills."""

    explorer: Explorer
    table: Table
    requests: list[GenerationRequest]

    async def rollout(
        self,
        tasks: Sequence[Task],
        group_size: int = 2,
        sampling: Sampling = SAMPLING,
        step: int = 1,
        max_failed_frac: float = 1.0,
    ) -> list[StoredGroup]:
        leases = self.lease(tasks, step)
        await self.explorer.rollout(step, leases, tasks, group_size, sampling, max_failed_frac)
        return self.table.store.groups([group_id(lease) for lease in leases])

    def lease(self, tasks: Sequence[Task], step: int = 1) -> list[Lease]:
        return self.table.catalog.leases.issue(step, len(tasks), "explorer-0", lambda position: tasks[position % len(tasks)].task_id, None)


def build(
    table: Table, shape: Path, scorers: Scorers, environment: str = MOODY, seed: int = 0, max_context: int = 32, **script: Any
) -> Bench:
    tokenizer = Tokenizer(shape)
    given: dict[str, Any] = {"tokenizer": tokenizer, "max_context": max_context, "dtype": "float32", "compute": ThreadPoolExecutor(1)}
    engine = engines.build("scripted", {"default": ["3", "4"], "by_attempt": True, **script}, "rollout.engine", **given)
    requests: list[GenerationRequest] = []
    generate = engine.generate

    async def recorded(request: GenerationRequest, on_start: Callable[[], None]) -> Completion:
        requests.append(request)
        return await generate(request, on_start)

    engine.generate = recorded  # type: ignore[method-assign]

    def make() -> Any:
        return environments.build(environment, {}, "rollout.environment")

    explorer = Explorer(
        name="explorer-0",
        seed=seed,
        engine=engine,
        tokenizer=tokenizer,
        max_context=max_context,
        environment=make,
        held_out_environment=make,
        scorers=scorers,
        store=table.store,
    )
    return Bench(explorer, table, requests)


@asynccontextmanager
async def scored(table: Table, shape: Path, workers: int = 1, **script: Any) -> AsyncIterator[Bench]:
    """With real scorers in worker processes."""
    async with ScorerPool([RewardSpec(name="tests.explorer_parts:judge")], workers, folder=ROOT) as pool:
        yield build(table, shape, pool, **script)


@pytest.fixture
def unscored(table: Table, tiny_shape: Path) -> Callable[..., Bench]:
    return lambda **script: build(table, tiny_shape, Unscored(), **script)


def errors(group: StoredGroup) -> list[str | None]:
    return [row.error for row in group.rows]


async def test_every_attempt_is_a_row_with_what_was_sampled(table: Table, tiny_shape: Path) -> None:
    async with scored(table, tiny_shape) as bench:
        (found,) = await bench.rollout([task()])
    first, second = found.rows
    tokenizer = bench.explorer.tokenizer
    assert (first.reward, second.reward) == (1.0, 0.0)
    assert first.reward_parts == {"judge": 1.0}
    assert (first.response_text, second.response_text) == ("3", "4")
    prompt, answer = tokenizer.encode("1+2="), (*tokenizer.encode("3"), tokenizer.eos_id)
    assert first.tokens == prompt + answer
    assert first.action_mask == (False,) * 4 + (True,) * 2
    assert first.logprobs[:4] == (0.0,) * 4
    assert all(value < -2 for value in first.logprobs[4:])
    assert (first.prompt_length, first.prompt_text, first.temperature) == (4, "1+2=", 0.7)
    assert (first.stop_reason, first.source, first.error) == (StopReason.EOS, Source.POLICY, None)
    assert (first.explorer, first.attempt, second.attempt, first.turn_index) == ("explorer-0", 0, 1, 0)
    assert first.task_id == task().task_id
    assert table.catalog.leases.fates() == {"ready": 1}


@pytest.mark.parametrize(("mood", "num_turns"), [("talks twice", 2), ("asks for three at once", 3)])
async def test_the_turns_of_an_attempt_are_rows_of_their_own(mood: str, num_turns: int, unscored: Callable[..., Bench]) -> None:
    bench = unscored()
    (found,) = await bench.rollout([task(mood=mood)])
    turns = [(attempt, turn) for attempt in range(2) for turn in range(num_turns)]
    assert [(row.attempt, row.turn_index) for row in found.rows] == turns
    assert len({row.experience_id for row in found.rows}) == 2 * num_turns
    assert len({request.seed for request in bench.requests}) == 2 * num_turns
    assert sorted(request.order for request in bench.requests) == [(0, attempt, turn) for attempt, turn in turns]


@pytest.mark.parametrize(
    ("mood", "error", "kept"),
    [
        ("raises at once", "ValueError: no\nmood", 0),
        ("raises later", "KeyError: 'second turn'", 2),
        ("times out by itself", "TimeoutError: the tool did not answer", 2),
        ("returns nothing", "AttemptError: the environment returned a NoneType of nothing; a list of trajectories", 2),
        ("returns turns", "AttemptError: the environment returned a list of Turn; a list of trajectories", 2),
        ("returns an empty list", "AttemptError: the environment returned a list of nothing; a list of trajectories", 2),
        ("returns no turns", "AttemptError: the environment returned a list of Trajectory; a list of trajectories", 2),
    ],
)
async def test_an_environment_that_fails_is_a_row_that_keeps_what_was_sampled(
    mood: str, error: str, kept: int, unscored: Callable[..., Bench]
) -> None:
    bad, good = await unscored().rollout([task(mood=mood), task()])
    for row in bad.rows:
        assert row.error is not None
        assert row.error.startswith(error)
        assert row.reward is None
        assert sum(row.action_mask) == kept
        assert row.stop_reason == (StopReason.EOS if kept else None)
        assert row.prompt_text == "1+2="
    assert errors(good) == [None, None]


async def test_a_hung_environment_is_cut_off_at_the_deadline(unscored: Callable[..., Bench]) -> None:
    bench = unscored()
    bad, good = await bench.rollout([task(mood="hangs"), task()], sampling=replace(SAMPLING, timeout_s=0.3))
    assert errors(bad) == ["DeadlineError: the attempt took longer than 0.3 s; raise rollout.timeout_s"] * 2
    assert [row.response_text for row in bad.rows] == ["3", "4"]
    assert errors(good) == [None, None]
    assert bench.table.catalog.leases.fates() == {"pending": 1, "timed_out": 1}


async def test_an_engine_that_never_answers_leaves_a_row_without_tokens(unscored: Callable[..., Bench]) -> None:
    bench = unscored(hang=["0+0="], fail=["9+9="])
    hung, failed, good = await bench.rollout([task("0+0="), task("9+9="), task()], sampling=replace(SAMPLING, timeout_s=0.3))
    assert [(row.tokens, row.stop_reason, row.prompt_text) for row in hung.rows] == [((), None, "0+0=")] * 2
    assert errors(failed) == ["EngineError: the script says that this prompt fails; take it out of `fail`"] * 2
    assert errors(good) == [None, None]


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ("", "EmptyPromptError: the prompt of this task is empty; every task needs a prompt: see data.*.format"),
        ("  \n", "EmptyPromptError: the prompt of this task is empty"),
        ("1" * 32, "PromptTooLongError: the prompt has 32 tokens, the context has 32"),
        ("1" * 40, "PromptTooLongError: the prompt has 40 tokens, the context has 32"),
    ],
)
async def test_a_prompt_that_cannot_be_answered_is_a_row(question: str, error: str, unscored: Callable[..., Bench]) -> None:
    bench = unscored()
    bad, good = await bench.rollout([task(question), task()])
    assert all(row.error is not None and row.error.startswith(error) and row.tokens == () for row in bad.rows)
    assert errors(good) == [None, None]
    assert len(bench.requests) == 2


async def test_an_answer_gets_the_room_that_the_prompt_leaves(unscored: Callable[..., Bench]) -> None:
    bench = unscored(default=["123456"])
    tight, roomy = await bench.rollout([task("1" * 30), task()], group_size=1)
    assert sorted(request.max_tokens for request in bench.requests) == [2, 4]
    assert [(group.rows[0].response_text, group.rows[0].stop_reason) for group in (tight, roomy)] == [
        ("12", StopReason.LENGTH),
        ("1234", StopReason.LENGTH),
    ]


async def test_scorers_that_hang_raise_or_say_nothing(table: Table, tiny_shape: Path) -> None:
    """trl PR #5902, verl PR #6673: of a group's rewards one never comes, one raises, one is None; the others count."""
    async with scored(table, tiny_shape, workers=2, default=["3", "11", "12", "13", "4", "3"]) as bench:
        (found,) = await bench.rollout([task()], group_size=6, sampling=replace(SAMPLING, timeout_s=1.0))
    assert [row.reward for row in found.rows] == [1.0, None, None, None, 0.0, 1.0]
    told = errors(found)
    assert told[0] is told[3] is told[4] is told[5] is None
    assert told[1] is not None and told[1].startswith("DeadlineError: reward 'judge'")
    assert told[2] is not None and told[2].startswith("RewardError: reward 'judge' raised ValueError: no such answer")
    assert [row.response_text for row in found.rows] == ["3", "11", "12", "13", "4", "3"]
    assert table.catalog.leases.fates() == {"ready": 1}


async def test_too_many_failures_end_the_run_after_they_are_stored(unscored: Callable[..., Bench]) -> None:
    bench = unscored()
    tasks = [task("1+1=", "raises at once"), task("1+2=", "raises later"), task()]
    with pytest.raises(RolloutError) as raised:
        await bench.rollout(tasks, max_failed_frac=0.6)
    assert str(raised.value) == "step 1: 4 of 6 attempts failed: 2 x ValueError: no mood; 2 x KeyError: 'second turn'"
    # Nothing of such a rollout is trained, and its tasks are tried again.
    assert bench.table.catalog.leases.fates() == {"failed": 3}
    assert bench.table.ask("select count(*) as n from experiences where error is not null") == [{"n": 4}]
    again = bench.table.catalog.leases.issue(1, 0, "explorer-0", str, None)
    assert [(lease.slot, lease.epoch) for lease in again] == [(0, 1), (1, 1), (2, 1)]
    await bench.explorer.rollout(1, again, [task()] * 3, 2, SAMPLING, 0.6)
    assert bench.table.catalog.leases.fates() == {"failed": 3, "pending": 3}


async def test_as_many_failures_as_are_allowed_end_nothing(unscored: Callable[..., Bench]) -> None:
    await unscored().rollout([task("1+1=", "raises at once"), task()], max_failed_frac=0.5)


async def test_a_mistake_of_the_recipe_is_no_bad_rollout(table: Table, tiny_shape: Path) -> None:
    async with ScorerPool([RewardSpec(name="tests.explorer_parts:no_such_reward")], 1, folder=ROOT) as pool:
        bench = build(table, tiny_shape, pool)
        with pytest.raises(ConfigError, match="no_such_reward"):
            await bench.rollout([task(), task()])
    assert table.files("segments") == set()


async def test_a_task_that_is_there_twice_has_two_groups_with_other_samples(unscored: Callable[..., Bench]) -> None:
    bench = unscored(by_attempt=False, default=[str(number) for number in range(10)])
    first, second = await bench.rollout([task(), task()], group_size=8)
    assert first.group_id != second.group_id
    assert len({request.seed for request in bench.requests}) == 16
    assert [row.response_text for row in first.rows] != [row.response_text for row in second.rows]
    assert len({row.experience_id for group in (first, second) for row in group.rows}) == 16


async def test_samples_follow_from_what_an_attempt_is(table: Table, tiny_shape: Path) -> None:
    async def seeds(seed: int, step: int, key: str) -> list[int]:
        bench = build(Table(table.run_dir.root / key), tiny_shape, Unscored(), seed=seed)
        await bench.rollout([task(), task("2+2=")], step=step)
        bench.table.close()
        return sorted(request.seed for request in bench.requests)

    first = await seeds(0, 1, "a")
    assert await seeds(0, 1, "b") == first
    assert not set(first) & set(await seeds(0, 2, "c"))
    assert not set(first) & set(await seeds(1, 1, "d"))
    assert seed_of(0, 1, task().task_id, 0, 0, 0) in first


async def test_a_lease_that_is_issued_again_is_sampled_the_same(unscored: Callable[..., Bench]) -> None:
    bench = unscored()
    bench.lease([task(), task("2+2=")])
    bench.table.catalog.leases.take_back("explorer-0", "killed before anything was stored")
    again = bench.table.catalog.leases.issue(1, 0, "explorer-0", str, None)
    assert [lease.epoch for lease in again] == [1, 1]
    await bench.explorer.rollout(1, again, [task(), task("2+2=")], 2, SAMPLING, 1.0)
    seeds = {request.seed for request in bench.requests}
    assert seeds == {
        seed_of(0, 1, one.task_id, slot, attempt, 0) for slot, one in enumerate((task(), task("2+2="))) for attempt in range(2)
    }


async def test_held_out_tasks_are_answered_once_and_not_stored(table: Table, tiny_shape: Path) -> None:
    async with scored(table, tiny_shape, default=["3", "4"]) as bench:
        finished = await bench.explorer.answer([task(), task("2+2="), task("1+1=", "raises at once")], replace(SAMPLING, temperature=0.0))
    assert [result.reward.value for result in finished] == [1.0, 1.0, None]
    assert finished[2].error == "ValueError: no\nmood"
    assert table.files("segments") == set()
    assert {request.temperature for request in bench.requests} == {0.0}


async def test_an_expert_reply_is_a_turn_that_ends(unscored: Callable[..., Bench]) -> None:
    bench = unscored(environment="expert")
    (found,) = await bench.rollout([task()], group_size=1)
    (row,) = found.rows
    eos = bench.explorer.tokenizer.eos_id
    assert row.tokens[4:] == (*bench.explorer.tokenizer.encode("3"), eos)
    assert row.action_mask == (False,) * 4 + (True,) * 2
    assert set(row.logprobs) == {0.0}
    assert (row.source, row.stop_reason, row.response_text) == (Source.EXPERT, StopReason.EOS, "3")
    assert bench.requests == []


async def test_an_expert_reply_that_does_not_fit_is_a_row(unscored: Callable[..., Bench]) -> None:
    long = replace(task(), response="1" * 28)
    missing = replace(task("2+2="), response=None)
    fits = replace(task("2+3="), response="1" * 27)
    groups = await unscored(environment="expert").rollout([long, missing, fits], group_size=1)
    told = [group.rows[0].error for group in groups]
    assert told[0] == "PromptTooLongError: prompt and reply have 33 tokens, the context has 32"
    assert told[1] is not None and "has no expert's response" in told[1]
    assert told[2] is None


async def test_the_engine_is_told_how_many_attempts_may_still_ask(unscored: Callable[..., Bench]) -> None:
    bench = unscored()
    counts: list[int] = []
    start = bench.explorer.engine.generate

    async def counting(request: GenerationRequest, on_start: Callable[[], None]) -> Completion:
        counts.append(len(bench.explorer._asking))
        return await start(request, on_start)

    bench.explorer.engine.generate = counting  # type: ignore[method-assign]
    await bench.rollout([task(mood="raises at once"), task()], group_size=3)
    assert counts[0] <= 6
    assert not bench.explorer._asking
