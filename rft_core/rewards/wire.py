"""How the scorer pool and its workers talk: messages of JSON, each with its length before it.

The JSON is ASCII, so that any text passes, NUL and lone surrogates included.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from rft_core import errors
from rft_core.errors import RewardError, TidemillError
from rft_core.types import Message, Reward, Task

HEADER_BYTES = 4


def framed(message: Mapping[str, Any]) -> bytes:
    """The bytes of one message.

    Raises:
        TypeError: It holds something that JSON does not.
    """
    body = json.dumps(message).encode("ascii")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def body_size(header: bytes) -> int:
    """The number of bytes that follow a header."""
    return int.from_bytes(header, "big")


def send(descriptor: int, message: Mapping[str, Any]) -> None:
    """Write one message, blocking."""
    rest = memoryview(framed(message))
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> dict[str, Any] | None:
    """Read one message, blocking; null at the end of the stream."""
    header = _read(descriptor, HEADER_BYTES)
    body = _read(descriptor, body_size(header)) if header else None
    return None if body is None else dict(json.loads(body))


def _read(descriptor: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(descriptor, size)
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def pack_task(task: Task) -> dict[str, Any]:
    """A task as plain values."""
    return {
        "task_id": task.task_id,
        "messages": [[message.role, message.content] for message in task.messages],
        "answer": task.answer,
        "response": task.response,
        "facts": dict(task.facts),
    }


def unpack_task(values: Mapping[str, Any]) -> Task:
    """The task that `pack_task` was given, with lists where its facts had tuples."""
    messages = tuple(Message(role, content) for role, content in values["messages"])
    return Task(values["task_id"], messages, values["answer"], values["response"], values["facts"])


def pack_reward(reward: Reward) -> dict[str, Any]:
    """A reward as plain values."""
    return {"value": reward.value, "parts": dict(reward.parts), "reason": reward.reason}


def pack_error(error: TidemillError) -> dict[str, Any]:
    """An error of the tree as plain values."""
    return {"error": type(error).__name__, "args": [argument if isinstance(argument, str) else repr(argument) for argument in error.args]}


def unpack_reply(reply: Mapping[str, Any]) -> Reward:
    """The reward in a worker's reply.

    Raises:
        TidemillError: The reply is an error; it is raised as what it was.
    """
    if "error" in reply:
        kind = getattr(errors, reply["error"], RewardError)
        raise kind(*reply["args"])
    return Reward(reply["value"], reply["parts"], reply["reason"])
