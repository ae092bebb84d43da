"""What the rewards that compare text have in common."""

import re
import unicodedata
from typing import Annotated

from pydantic import StringConstraints

from rft_core.errors import RewardError
from rft_core.registry import ExtensionConfig
from rft_core.types import Task

Tag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class AnswerConfig(ExtensionConfig):
    """Where a reward finds the answer in what the policy said."""

    tag: Tag | None = None
    """Look only at the text between the last `<tag>` and `</tag>`; without them the score is 0."""


def spoken(config: AnswerConfig, answer: str) -> str:
    """The part of an answer that counts; empty if the tag that should hold it is not there."""
    if config.tag is None:
        return answer
    found = re.findall(rf"<{config.tag}>(.*?)</{config.tag}>", answer, flags=re.DOTALL)
    return str(found[-1]) if found else ""


def gold_of(task: Task) -> str:
    """The right answer of a task that is known to have one.

    Raises:
        RewardError: It has none.
    """
    if task.answer is None:
        raise RewardError("the task has no answer", "`format.answer` names the field of the row that holds it")
    return task.answer


def plain(text: str, *, ignore_case: bool = False) -> str:
    """Text for a comparison: composed characters (NFC), no space around it, one space between words."""
    words = " ".join(unicodedata.normalize("NFC", text).split())
    return words.casefold() if ignore_case else words


def shown(text: str, limit: int = 60) -> str:
    """Text for a reason, cut to a few words."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")
