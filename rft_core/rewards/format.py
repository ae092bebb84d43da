"""The answer has the form that was asked for."""

import re
from typing import Self

from pydantic import field_validator, model_validator

from rft_core.registry import ExtensionConfig
from rft_core.rewards.base import Score, rewards
from rft_core.rewards.text import Tag
from rft_core.types import Task


class FormatRewardConfig(ExtensionConfig):
    """Arguments of `format`: a pattern or tags."""

    pattern: str | None = None
    """A regular expression that the whole answer must match; the dot matches line ends too."""
    tags: tuple[Tag, ...] = ()
    """The answer must be `<tag>...</tag>` for each of these, in this order, each once, with nothing between but space."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression ({error})") from None
        return pattern

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.pattern is None) == (not self.tags):
            raise ValueError("give either `pattern` or `tags`")
        return self


@rewards.register("format", config=FormatRewardConfig)
class Format:
    """1 if the whole answer has the form, else 0."""

    needs: tuple[str, ...] = ()

    def __init__(self, config: FormatRewardConfig) -> None:
        self._tags = config.tags
        pattern = config.pattern if config.pattern is not None else r"\s*" + r"\s*".join(f"<{t}>.*</{t}>" for t in config.tags) + r"\s*"
        self._pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, task: Task, answer: str) -> Score:
        for tag in self._tags:
            if answer.count(f"<{tag}>") != 1 or answer.count(f"</{tag}>") != 1:
                return Score(0.0, f"<{tag}> and </{tag}> are not there once each")
        right = self._pattern.fullmatch(answer) is not None
        return Score(1.0, "as asked") if right else Score(0.0, "not the form asked for")
