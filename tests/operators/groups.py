"""Groups for the tests of operators."""

from rft_core.operators.base import Attempt, Group
from rft_core.types import Experience, StopReason


def row(name: str, length: int = 4, stop: StopReason | None = StopReason.EOS, prompt: int = 3) -> Experience:
    return Experience(
        experience_id=name,
        group_id="g",
        task_id="t",
        lease_id="l",
        attempt=0,
        turn_index=0,
        explorer="e",
        policy_version=0,
        policy_version_end=0,
        tokens=(7,) * (prompt + length),
        action_mask=(False,) * prompt + (True,) * length,
        logprobs=(0.0,) * (prompt + length),
        temperature=1.0,
        prompt_length=prompt,
        prompt_text="p",
        response_text="r",
        reward=None,
        stop_reason=stop,
    )


def group(name: str, rewards: list[float | None], length: int = 4, stop: StopReason | None = StopReason.EOS) -> Group:
    return Group(name, tuple(Attempt((row(f"{name}{i}", length, stop),), reward) for i, reward in enumerate(rewards)))
