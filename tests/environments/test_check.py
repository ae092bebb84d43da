"""`check_environment` on what authors of environments do wrong."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rft_core.environments import Policy, environments
from rft_core.environments.check import check_environment
from rft_core.types import Message, Source, Task, Trajectory

Body = Callable[[Task, Policy], Any]


class Own:
    """A user's environment with a body."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def run(self, task: Task, policy: Policy) -> Any:
        return await self._body(task, policy)


async def no_list(task: Task, policy: Policy) -> Any:
    return Trajectory((await policy.start(task.messages),))


async def nothing(task: Task, policy: Policy) -> Any:
    await policy.start(task.messages)


async def empty(task: Task, policy: Policy) -> Any:
    return []


async def turns_for_trajectories(task: Task, policy: Policy) -> Any:
    return [await policy.start(task.messages)]


async def no_turns(task: Task, policy: Policy) -> Any:
    return [Trajectory(())]


async def other_text(task: Task, policy: Policy) -> Any:
    turn = await policy.start(task.messages)
    return [Trajectory((replace(turn, response_text=turn.response_text.strip() + "!"),))]


async def other_prompt(task: Task, policy: Policy) -> Any:
    turn = await policy.start(task.messages)
    return [Trajectory((replace(turn, prompt_tokens=turn.prompt_tokens[1:]),))]


async def from_elsewhere(task: Task, policy: Policy) -> Any:
    turn = await policy.start(task.messages)
    other = replace(turn.completion, tokens=(1,), logprobs=(0.0,))
    return [Trajectory((replace(turn, prompt_tokens=(2,), completion=other),))]


async def expert_as_policy(task: Task, policy: Policy) -> Any:
    return [Trajectory((policy.reply(task.messages, "42"),))]


async def policy_as_expert(task: Task, policy: Policy) -> Any:
    return [Trajectory((await policy.start(task.messages),), source=Source.EXPERT)]


async def twice(task: Task, policy: Policy) -> Any:
    turn = await policy.start(task.messages)
    return [Trajectory((turn,)), Trajectory((turn,))]


async def raises(task: Task, policy: Policy) -> Any:
    raise LookupError("no such tool")


async def blocks(task: Task, policy: Policy) -> Any:
    time.sleep(1.0)  # noqa: ASYNC251 - the mistake


def second_turn(change: Callable[[str], str]) -> Body:
    async def body(task: Task, policy: Policy) -> Any:
        first = await policy.start(task.messages)
        more = (*task.messages, Message("assistant", change(first.response_text)), Message("user", "Sure?"))
        return [Trajectory((first, await policy.start(more)))]

    return body


@pytest.mark.parametrize("name", ["single_turn", "expert"])
def test_the_built_in_ones_keep_to_the_protocol(name: str) -> None:
    assert check_environment(environments.build(name, {}, "rollout.environment")) == []


def test_a_multi_turn_one_that_hands_everything_on_does_too() -> None:
    assert check_environment(Own(second_turn(lambda said: said))) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (no_list, "`run` returned a Trajectory: return a list of `Trajectory`."),
        (nothing, "`run` returned None: return a list of trajectories"),
        (empty, "`run` returned no trajectory"),
        (turns_for_trajectories, "`run` returned a list with a Turn"),
        (no_turns, "`run` never asked the policy"),
        (other_text, "Trajectory 1 turn 1 has another completion than the policy gave"),
        (other_prompt, "Trajectory 1 turn 1 has other prompt tokens than the policy was given"),
        (from_elsewhere, "Trajectory 1 turn 1 is not from the policy"),
        (expert_as_policy, "Trajectory 1 turn 1 came from `policy.reply`, but the trajectory's source is 'policy'."),
        (policy_as_expert, "Trajectory 1 turn 1 came from `policy.start`, but the trajectory's source is 'expert'."),
        (twice, "Trajectory 2 turn 1 is in the result twice"),
        (raises, "`run` raised LookupError: no such tool"),
        (second_turn(str.strip), "Trajectory 1 turn 2 does not begin with the tokens of turn 1"),
    ],
)
def test_each_mistake_is_told_in_a_sentence(body: Body, said: str) -> None:
    problems = check_environment(Own(body))
    assert len(problems) == (2 if body is no_turns else 1)
    assert problems[0].startswith(said)


def test_one_that_does_not_end_is_told() -> None:
    assert check_environment(Own(blocks), limit_s=0.05) == ["`run` did not end within 0.05 s, though the policy answers at once."]


def test_one_that_is_not_async_is_told() -> None:
    class Plain:
        def run(self, task: Task, policy: Policy) -> list[Trajectory]:
            return []

    assert check_environment(Plain())[0].startswith("`run` is not async")  # type: ignore[arg-type]
    assert check_environment(object()) == ["object has no method `run(task, policy)`."]  # type: ignore[arg-type]


async def test_it_works_where_a_loop_is_running_already() -> None:
    assert check_environment(environments.build("single_turn", {}, "rollout.environment")) == []
