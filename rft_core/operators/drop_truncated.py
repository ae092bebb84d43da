"""Leave out answers that were cut off."""

from dataclasses import replace

from rft_core.operators.base import Attempt, Group, operators
from rft_core.registry import ExtensionConfig
from rft_core.types import StopReason


@operators.register("drop_truncated")
class DropTruncated:
    """Leave out attempts whose last answer reached the token limit: their reward says little (DAPO's overlong filtering)."""

    needs_rewards = False

    def __init__(self, config: ExtensionConfig, max_tokens: int) -> None:
        self._config = config

    def __call__(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(replace(group, attempts=tuple(map(_checked, group.attempts))) for group in groups)


def _checked(attempt: Attempt) -> Attempt:
    cut = bool(attempt.rows) and attempt.rows[-1].stop_reason is StopReason.LENGTH
    return attempt.drop("drop_truncated", "answer cut off at the token limit") if cut else attempt
