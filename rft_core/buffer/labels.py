"""Labels of experiences: what counts where they differ, and the files in which people bring them."""

import json
import math
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rft_core.buffer.forms import clean_text
from rft_core.catalog import REWARD
from rft_core.errors import DataError
from rft_core.types import digest

Combine = Literal["newest", "mean"]
MOST = 1e100
"""The largest value of a label, so that means of any number of them are finite."""
_KEYS = {"experience_id", "field", "value", "author", "note"}


@dataclass(frozen=True, slots=True)
class LabelLine:
    """One line of a file of labels."""

    line: int
    """From 1."""
    key: str
    """Names the label by all that it says, and by how often its file said just that before: the same file again changes nothing, and one
    that was edited or has grown brings what is new. What is said in another file is the same label, unless its note differs."""
    experience_id: str
    value: float
    author: str
    field: str = REWARD
    note: str = ""


def combined(labels: Mapping[str, Sequence[tuple[str, float]]], how: Combine) -> dict[str, float]:
    """What counts of the labels of each experience.

    Args:
        labels: Author and value of each label by experience id, oldest first.
        how: `newest` takes the last one; `mean` takes the last one of each author, and their mean.
    """
    if how == "newest":
        return {experience_id: said[-1][1] for experience_id, said in labels.items()}
    return {experience_id: _mean(dict(said)) for experience_id, said in labels.items()}


def read_labels(path: Path, author: str | None = None) -> list[LabelLine]:
    """Read a file of labels: one JSON object a line, as in `{"experience_id": "…", "value": 1, "author": "ada"}`.

    Args:
        path: The file.
        author: Who says so in the lines that name nobody.

    Raises:
        DataError: There is no such file, or a line of it is wrong; names the first one and says what would be right.
    """
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").split("\n")  # not splitlines: JSON may hold other separators of lines within a text
    except OSError as error:
        raise DataError(f"no labels at {path} ({error.strerror})", "name a JSONL file, one label a line") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start})", "a JSONL file, one label a line, is right") from None
    found: list[LabelLine] = []
    times: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for number, text in enumerate(lines, start=1):
        if text.strip():
            said = _said(text, f"{path} line {number}", author)
            same = tuple(said.items())
            times[same] += 1
            found.append(LabelLine(number, digest("label", *same, times[same]), **said))
    if not found:
        raise DataError(
            f"{path} holds no labels", 'one JSON object a line is right, as in {"experience_id": "...", "value": 1, "author": "ada"}'
        )
    return found


def _said(text: str, where: str, author: str | None) -> dict[str, Any]:
    """All that a line says, what it leaves out included."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({error})", 'as in {"experience_id": "...", "value": 1, "author": "ada"}') from None
    if not isinstance(values, dict):
        raise DataError(f"{where} is a {type(values).__name__}", "a JSON object is right")
    unknown = sorted(values.keys() - _KEYS)
    if unknown:
        raise DataError(f"{where} has the key {unknown[0]!r}", f"the keys are {', '.join(sorted(_KEYS))}")
    if "experience_id" not in values:
        raise DataError(f"{where} has no experience_id", "every label is of one experience; `rft sql` shows their ids")
    if "value" not in values:
        raise DataError(f"{where} has no value", "a finite number is right, or true or false")
    given = {"experience_id": "", "author": author, "field": REWARD, "note": ""} | values
    return {key: _number(value, where) if key == "value" else _text(key, value, where) for key, value in given.items()}


def _text(key: str, value: Any, where: str) -> str:
    if not isinstance(value, str) or (not value and key != "note"):
        right = "name the author in the line or with --author" if key == "author" else "a text is right"
        raise DataError(f"{where}: {key} is {value!r}", right)
    return clean_text(value)


def _number(value: Any, where: str) -> float:
    """A label's value: a finite number, or a yes or no."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        number = math.inf
    if not abs(number) <= MOST:
        right = f"at most {MOST:g} is right" if math.isfinite(number) else "a finite number is right, or true or false"
        raise DataError(f"{where}: value is {reprlib.repr(value)}", right)
    return number


def _mean(by_author: Mapping[str, float]) -> float:
    return math.fsum(by_author.values()) / len(by_author)
