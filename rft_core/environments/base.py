"""What every environment gives, and the policy that it is given."""

from collections.abc import Sequence
from typing import Protocol

from rft_core.registry import Registry
from rft_core.types import Message, Task, Trajectory, Turn


class Policy(Protocol):
    """The model as an environment sees it: bound to one attempt, its seed and its deadline."""

    async def start(self, messages: Sequence[Message]) -> Turn:
        """Render the messages by the model's chat template and sample the reply.

        Raises:
            EmptyPromptError: The messages render to no tokens.
            PromptTooLongError: They leave no room for a reply.
        """
        ...

    def reply(self, messages: Sequence[Message], response: str) -> Turn:
        """A turn whose reply is given (an expert's), tokenised once, here; log-probs are 0."""
        ...


class Environment(Protocol):
    """Runs one attempt, once: there is no reset."""

    async def run(self, task: Task, policy: Policy) -> list[Trajectory]:
        """Try the task. Whatever it raises is recorded with the attempt."""
        ...


environments: Registry[Environment] = Registry("environment", "rft_core.environments")
"""Environments are built as `cls(config)`, one for each attempt."""
