"""An expert's reply in place of the policy's."""

from rft_core.environments.base import Policy, environments
from rft_core.errors import AttemptError
from rft_core.registry import ExtensionConfig
from rft_core.types import Source, Task, Trajectory


@environments.register("expert")
class Expert:
    """The task's own `response` as a trajectory: supervised fine-tuning needs no rollout."""

    def __init__(self, config: ExtensionConfig) -> None:
        self._config = config

    async def run(self, task: Task, policy: Policy) -> list[Trajectory]:
        if task.response is None:
            raise AttemptError(
                f"task {task.task_id} has no expert's response", "`format.response` names the field of the row that holds it"
            )
        return [Trajectory(turns=(policy.reply(task.messages, task.response),), source=Source.EXPERT)]
