"""One prompt, one reply."""

from rft_core.environments.base import Policy, environments
from rft_core.registry import ExtensionConfig
from rft_core.types import Task, Trajectory


@environments.register("single_turn")
class SingleTurn:
    """The task's messages go to the policy, and its reply is the answer."""

    def __init__(self, config: ExtensionConfig) -> None:
        self._config = config

    async def run(self, task: Task, policy: Policy) -> list[Trajectory]:
        return [Trajectory(turns=(await policy.start(task.messages),))]
