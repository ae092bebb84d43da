"""How one row becomes a task."""

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rft_core.config import FormatConfig
from rft_core.errors import DataError
from rft_core.types import Message, Task, digest

_NOT_CONTENT = ("reasoning_gym",)
"""Fields that tell where a row is from, not what it says; see `rft_core.taskset.gym`."""


def make_task(row: Mapping[str, Any], form: FormatConfig, where: str) -> Task:
    """Make a task of a row. Null fields count as missing.

    Args:
        row: The row's fields.
        form: Names the fields and holds the templates.
        where: How messages call the row, as in `train.jsonl row 3`.

    Raises:
        DataError: A template names a field that is not there, or the chat turns are malformed.
    """
    fields: dict[str, Any] = normalised(row, where)
    turns = _ready_turns(fields.get(form.messages), where)
    response = fields.get(form.response)
    if response is None and turns and turns[-1].role == "assistant":
        response = turns.pop().content
    prompt = turns or [Message("user" if form.chat else "text", _filled(form.prompt, fields, where))]
    named = {form.answer, form.response, form.messages}
    return Task(
        task_id=digest("task", _canonical({key: value for key, value in fields.items() if key not in _NOT_CONTENT})),
        messages=_with_frame(prompt, form, where),
        answer=_text(fields.get(form.answer)),
        response=_text(response),
        facts={key: value for key, value in fields.items() if key not in named},
    )


def normalised(value: Any, where: str) -> Any:
    """A value as JSON holds it, so that the same row of a JSON and of a Parquet file is the same task.

    Nulls inside objects are left out, since a Parquet file fills in fields that other rows have. Lone surrogates, which
    no file and no tokenizer takes, become U+FFFD. Bytes become base64 text; dates and decimals their text.

    Raises:
        DataError: The value has a type that none of this covers.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return _well_formed(value)
    if isinstance(value, Mapping):
        return {_well_formed(str(key)): normalised(item, where) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [normalised(item, where) for item in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID | timedelta):
        return str(value)
    raise DataError(f"{where} holds a {type(value).__name__}", "fields hold text, numbers, dates, lists and objects")


def one_line(error: BaseException, limit: int = 200) -> str:
    """An error's text for a message of one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _ready_turns(value: Any, where: str) -> list[Message]:
    if value is None:
        return []
    turns = value if isinstance(value, list) else [value]
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str) or not isinstance(turn.get("content"), str):
            raise DataError(
                f"{where} has the chat turn {str(turn)[:80]}", "a turn is {role, content}, both text; `format.messages` names the field"
            )
    if not turns:
        raise DataError(f"{where} has no chat turns", "`format.messages` names a list of {role, content}")
    return [Message(turn["role"], turn["content"]) for turn in turns]


def _with_frame(prompt: list[Message], form: FormatConfig, where: str) -> tuple[Message, ...]:
    """The prompt's turns with the system turn and the worked examples of the recipe before them."""
    if not form.chat:
        if form.system is not None or form.examples or prompt[0].role != "text":
            raise DataError(
                f"{where}: a raw text prompt (`format.chat: false`) has no turns", "write system text and examples into `format.prompt`"
            )
        return tuple(prompt)
    own = prompt[:1] if prompt[0].role == "system" else []
    system = own or ([Message("system", form.system)] if form.system is not None else [])
    examples = [message for e in form.examples for message in (Message("user", e.user), Message("assistant", e.assistant))]
    return (*system, *examples, *prompt[len(own) :])


def _filled(template: str, fields: dict[str, Any], where: str) -> str:
    try:
        return template.format_map(fields)
    except KeyError as error:
        known = ", ".join(fields) or "none"
        found = f"{where} has no field {error.args[0]!r}, which the template {template!r} names"
        raise DataError(found, f"its fields are: {known}; a literal brace is doubled") from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        remedy = "a template names fields in braces, as in {question}; a literal brace is doubled"
        raise DataError(f"{where}: the template {template!r} can't be filled ({one_line(error)})", remedy) from None


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _canonical(fields: dict[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
