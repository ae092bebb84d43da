"""Environments and rewards that fail in every way, for the tests of the explorer and of the loop."""

import asyncio
import time
from pathlib import Path
from typing import Any

from rft_core.environments import Policy, environments
from rft_core.registry import ExtensionConfig
from rft_core.types import Message, Task, Trajectory

MOODY = "tests_moody"


@environments.register(MOODY)
class Moody:
    """Does what the task's `mood` says."""

    def __init__(self, config: ExtensionConfig) -> None: ...

    async def run(self, task: Task, policy: Policy) -> Any:
        mood = task.facts.get("mood", "fine")
        if mood == "raises at once":
            raise ValueError("no\nmood")
        first = await policy.start(task.messages)
        if mood == "raises later":
            raise KeyError("second turn")
        if mood == "hangs":
            await asyncio.Event().wait()
        if mood == "times out by itself":
            raise TimeoutError("the tool did not answer")
        if mood.startswith("returns"):
            return {"returns nothing": None, "returns turns": [first], "returns an empty list": [], "returns no turns": [Trajectory(())]}[
                mood
            ]
        if mood == "talks twice":
            return [Trajectory((first, await policy.start((Message("text", f"1+{first.response_text}="),))))]
        if mood == "asks for three at once":
            more = await asyncio.gather(*(policy.start(task.messages) for _ in range(2)))
            return [Trajectory((turn,)) for turn in (first, *more)]
        return [Trajectory((first,))]


@environments.register("tests_shouting")
class Shouting:
    """Says every prompt so often that it does not fit any more."""

    def __init__(self, config: ExtensionConfig) -> None: ...

    async def run(self, task: Task, policy: Policy) -> Any:
        text = task.messages[-1].content
        return [Trajectory((await policy.start((Message("text", text * (36 // len(text)) + text[: 36 % len(text)]),)),))]


def judge(task: Task, answer: str) -> float | None:
    """A reward that does what the answer says."""
    if answer == "11":
        time.sleep(3600)
    if answer == "12":
        raise ValueError("no\nsuch answer")
    if answer == "13":
        return None
    return float(answer == task.answer)


def coin(task: Task, answer: str) -> float:
    """Right is whoever says 0."""
    return float(answer == "0")


def fails_at_two(task: Task, answer: str) -> float:
    if task.answer == "2" and answer == "2":
        raise ValueError("two")
    return float(answer == task.answer)


def broken(task: Task, answer: str) -> float:
    raise OSError("the grader's\nfile is not there")


def reads_a_file(task: Task, answer: str) -> float:
    """A grader whose own files may be missing; it looks at them only for wrong answers, so no group fails as a whole."""
    if answer == task.answer:
        return 1.0
    return float(len(Path("unit_tests.txt").read_text()))
