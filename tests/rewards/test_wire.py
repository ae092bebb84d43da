"""What goes between the pool and its workers arrives as it was."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core import errors
from rft_core.errors import ConfigError, DeadlineError, RewardError, TidemillError
from rft_core.rewards.wire import framed, pack_error, pack_reward, pack_task, receive, send, unpack_reply, unpack_task
from rft_core.types import Message, Reward, Task

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3))


@settings(deadline=None)
@given(text=TEXT, answer=st.none() | TEXT, facts=st.dictionaries(TEXT, JSON, max_size=3))
def test_any_task_passes_through_a_pipe(text: str, answer: str | None, facts: dict[str, object]) -> None:
    task = Task("t", (Message("user", text),), answer, None, facts)
    read, write = os.pipe()
    try:
        send(write, pack_task(task))
        received = receive(read)
    finally:
        os.close(read)
        os.close(write)
    assert received is not None
    assert unpack_task(received) == task


def test_a_stream_that_ends_inside_a_message_has_no_message() -> None:
    read, write = os.pipe()
    os.write(write, framed({"answer": "4"})[:-1])
    os.close(write)
    try:
        assert receive(read) is None
    finally:
        os.close(read)


def test_rewards_and_errors_come_back_as_what_they_were() -> None:
    reward = Reward(None, {"exact": 1.0}, "why")
    assert unpack_reply(pack_reward(reward)) == reward
    for error in (RewardError("found", "right"), DeadlineError("late", ""), ConfigError("rewards.0", "exakt", "a reward is one of exact")):
        with pytest.raises(type(error)) as raised:
            unpack_reply(pack_error(error))
        assert str(error).replace("'", "") in str(raised.value).replace("'", "")


def test_every_attempt_error_can_be_sent() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.AttemptError)]
    assert len(kinds) >= 6
    for kind in kinds:
        with pytest.raises(TidemillError) as raised:
            unpack_reply(pack_error(kind("found", "right")))
        assert type(raised.value) is kind
