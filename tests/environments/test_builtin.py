"""The environments that come with Tidemill."""

import pytest

from rft_core.environments import environments
from rft_core.environments.check import REPLY, LetterTokenizer, RecordingPolicy
from rft_core.errors import AttemptError, EmptyPromptError
from rft_core.types import Message, Source, Task

TASK = Task("t", (Message("system", "Be brief."), Message("user", "6 * 7?")), answer="42", response="It is 42.")


async def test_single_turn_is_one_prompt_and_one_reply() -> None:
    policy = RecordingPolicy(LetterTokenizer())
    (trajectory,) = await environments.build("single_turn", {}, "rollout.environment").run(TASK, policy)
    assert trajectory.turns == (policy.turns[0][0],)
    assert trajectory.turns[0].prompt_text == "system: Be brief.\nuser: 6 * 7?\nassistant: "
    assert (trajectory.response_text, trajectory.source) == (REPLY, Source.POLICY)


async def test_expert_replays_the_tasks_own_response() -> None:
    policy = RecordingPolicy(LetterTokenizer())
    (trajectory,) = await environments.build("expert", {}, "rollout.environment").run(TASK, policy)
    assert (trajectory.response_text, trajectory.source) == ("It is 42.", Source.EXPERT)
    assert set(trajectory.turns[0].completion.logprobs) == {0.0}


async def test_expert_without_a_response_fails_the_attempt() -> None:
    with pytest.raises(AttemptError, match="task t has no expert's response; `format.response` names the field"):
        await environments.build("expert", {}, "rollout.environment").run(Task("t", TASK.messages), RecordingPolicy(LetterTokenizer()))


class NoTemplate(LetterTokenizer):
    """Renders nothing."""

    def render(self, messages: object) -> str:
        return ""


async def test_what_the_policy_raises_is_left_to_the_explorer() -> None:
    with pytest.raises(EmptyPromptError):
        await environments.build("single_turn", {}, "rollout.environment").run(TASK, RecordingPolicy(NoTemplate()))
