"""Leave out groups that teach nothing."""

from pydantic import NonNegativeFloat

from rft_core.operators.base import Group, operators
from rft_core.registry import ExtensionConfig


class DropNoSignalConfig(ExtensionConfig):
    """Arguments of `drop_no_signal`."""

    min_spread: NonNegativeFloat = 1e-9
    """A group is kept if its highest reward is more than this above its lowest."""


@operators.register("drop_no_signal", config=DropNoSignalConfig)
class DropNoSignal:
    """Leave out groups whose attempts all have the same reward, so that every advantage is 0 (DAPO, arXiv 2503.14476).

    It looks at rewards as shaped so far: put it before a penalty for length, which gives groups without a right answer a spread.
    """

    needs_rewards = True

    def __init__(self, config: DropNoSignalConfig, max_tokens: int) -> None:
        self._min_spread = config.min_spread

    def __call__(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(self._checked(group) for group in groups)

    def _checked(self, group: Group) -> Group:
        rewards = [attempt.reward for attempt in group.live() if attempt.reward is not None]
        if len(rewards) < 2:
            return group.drop("drop_no_signal", "fewer than two scored attempts")
        if max(rewards) - min(rewards) <= self._min_spread:
            return group.drop("drop_no_signal", "all rewards equal")
        return group
