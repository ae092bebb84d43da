"""The columns of an experience, and the one place where rows are checked."""

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from rft_core.errors import SegmentError, TidemillError
from rft_core.types import Experience, Source, StopReason

VERSION = 1
"""Of these columns; written into every segment."""

EXPERIENCES = pa.schema(
    [
        ("experience_id", pa.string()),
        ("group_id", pa.string()),
        ("task_id", pa.string()),
        ("lease_id", pa.string()),
        ("attempt", pa.int32()),
        ("turn_index", pa.int32()),
        ("explorer", pa.string()),
        ("policy_version", pa.int32()),
        ("policy_version_end", pa.int32()),
        ("tokens", pa.list_(pa.int32())),
        ("action_mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
        ("temperature", pa.float64()),
        ("prompt_length", pa.int32()),
        ("prompt_text", pa.string()),
        ("response_text", pa.string()),
        ("reward", pa.float64()),
        ("stop_reason", pa.string()),
        ("reward_parts", pa.map_(pa.string(), pa.float64())),
        ("turn_rewards", pa.list_(pa.float64())),
        ("teacher_logprobs", pa.list_(pa.float32())),
        ("source", pa.string()),
        ("error", pa.string()),
        ("info", pa.string()),
        ("created_at", pa.float64()),
    ],
    metadata={"tidemill.schema": str(VERSION)},
)

OVERLAY = pa.schema(
    [
        ("pipeline", pa.string()),
        ("experience_id", pa.string()),
        ("shaped_reward", pa.float64()),
        ("dropped_by", pa.string()),
        ("drop_reason", pa.string()),
    ]
)
"""What a pipeline of operators made of each experience."""

EVALUATION = pa.schema(
    [
        ("version", pa.int32()),
        ("task_id", pa.string()),
        ("prompt_text", pa.string()),
        ("response_text", pa.string()),
        ("answer", pa.string()),
        ("reward", pa.float64()),
        ("exact", pa.bool_()),
        ("reason", pa.string()),
        ("error", pa.string()),
    ]
)
"""One scored answer to a held-out task."""

_TEXT = ("prompt_text", "response_text", "error")


def validate(row: Experience) -> None:
    """Check what every reader of the table relies on.

    Raises:
        TidemillError: A per-token list has another length than `tokens`, a trained token has a log-prob that can't be,
            or the reward is not finite.
    """
    for name in ("action_mask", "logprobs"):
        if len(getattr(row, name)) != len(row.tokens):
            raise TidemillError(
                f"experience {row.experience_id}: {name} has {len(getattr(row, name))} entries for {len(row.tokens)} tokens"
            )
    if row.teacher_logprobs and len(row.teacher_logprobs) != len(row.tokens):
        raise TidemillError(f"experience {row.experience_id}: teacher_logprobs and tokens differ in length")
    if not all(math.isfinite(value) and value <= 1e-4 for value in row.logprobs):
        raise TidemillError(f"experience {row.experience_id}: a log-prob is above 0 or not finite")
    if row.reward is not None and not math.isfinite(row.reward):
        raise TidemillError(f"experience {row.experience_id}: its reward is {row.reward}", "a reward is finite, or null while not known")


def to_arrow(rows: Sequence[Experience]) -> pa.Table:
    """Rows as an Arrow table of schema `EXPERIENCES`, validated."""
    for row in rows:
        validate(row)
    columns = {name: [_stored(name, getattr(row, name)) for row in rows] for name in EXPERIENCES.names}
    return pa.table(columns, schema=EXPERIENCES)


def from_arrow(table: pa.Table) -> list[Experience]:
    """Rows of an Arrow table of schema `EXPERIENCES`."""
    return [_experience(values) for values in table.to_pylist(maps_as_pydicts="strict")]


def check_version(schema: pa.Schema, where: str) -> None:
    """Refuse rows that a newer version of this code wrote.

    Raises:
        SegmentError: The columns are of another version.
    """
    found = (schema.metadata or {}).get(b"tidemill.schema", b"?").decode()
    if found != str(VERSION):
        raise SegmentError(f"{where} has columns of version {found}, this code has {VERSION}", "upgrade tidemill")


def clean_text(text: str) -> str:
    """The same text as it can be stored: lone surrogates, which UTF-8 has no form for, become backslash escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def jsonable(values: Iterable[tuple[str, Any]]) -> str:
    """Key-value pairs as JSON; what JSON has no form for becomes its text."""
    return json.dumps(dict(values), default=str, ensure_ascii=True, sort_keys=True)


def _stored(name: str, value: Any) -> Any:
    if name == "info":
        return jsonable(value.items())
    if name == "reward_parts":
        return list(value.items())
    if name in _TEXT and value is not None:
        return clean_text(value)
    return value


def _experience(values: dict[str, Any]) -> Experience:
    lists = {name: tuple(values[name]) for name in ("tokens", "action_mask", "logprobs", "turn_rewards", "teacher_logprobs")}
    stop = values["stop_reason"]
    return Experience(
        **{
            **values,
            **lists,
            "source": Source(values["source"]),
            "stop_reason": None if stop is None else StopReason(stop),
            "info": json.loads(values["info"]),
        }
    )
