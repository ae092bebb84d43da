"""Rewards for tests, in a module that is quickly imported by a scorer's process."""


def always_raises(task: object, answer: str) -> float:
    raise ValueError("no grader here")
