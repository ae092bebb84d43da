"""Rows go through Arrow and come back as they were; what can't be right is refused."""

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_core.buffer import schema
from rft_core.catalog import Lease
from rft_core.errors import SegmentError, TidemillError
from rft_core.types import Experience, Source, StopReason
from tests.buffer.table import row

ROW = row(Lease("l", 1, 0, 0, "t", 0))


def back(rows: list[Experience]) -> list[Experience]:
    return schema.from_arrow(schema.to_arrow(rows))


def test_a_row_comes_back_as_it_was() -> None:
    other = replace(
        ROW,
        experience_id="other",
        reward=None,
        stop_reason=None,
        error="RewardError: no",
        source=Source.EXPERT,
        turn_rewards=(0.5, -1.0),
        teacher_logprobs=(-1.0,) * 5,
        reward_parts={},
        info={},
    )
    nothing = replace(ROW, experience_id="nothing", tokens=(), action_mask=(), logprobs=(), prompt_length=0)
    assert back([ROW, other, nothing]) == [ROW, other, nothing]
    assert back([]) == []


@given(text=st.text(st.characters(exclude_categories=()), max_size=20), other=st.text(max_size=5))
def test_any_text_can_be_stored(text: str, other: str) -> None:
    (found,) = back([replace(ROW, prompt_text=text, response_text=other, error=text, info={"reason": text})])
    assert found.prompt_text == schema.clean_text(text) == found.error
    assert found.response_text == other
    assert found.info == {"reason": text}
    assert schema.clean_text(found.prompt_text) == found.prompt_text


def test_lone_surrogates_become_escapes_and_nothing_else_changes() -> None:
    assert schema.clean_text("a\ud800b\udfff\0ü\U0001f600") == "a\\ud800b\\udfff\0ü\U0001f600"


@given(reward=st.none() | st.floats(allow_nan=False, allow_infinity=False), logprob=st.floats(-(2.0**100), 0.0, width=32))
def test_numbers_come_back_exactly(reward: float | None, logprob: float) -> None:
    (found,) = back([replace(ROW, reward=reward, logprobs=(0.0, 0.0, 0.0, logprob, 0.0))])
    assert found.reward == reward
    assert found.logprobs[3] == logprob


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action_mask": (True,)}, "action_mask has 1 entries for 5 tokens"),
        ({"logprobs": (0.0,) * 6}, "logprobs has 6 entries for 5 tokens"),
        ({"tokens": ()}, "action_mask has 5 entries for 0 tokens"),
        ({"teacher_logprobs": (0.0,)}, "teacher_logprobs and tokens differ in length"),
        ({"logprobs": (0.0, 0.0, 0.0, 0.5, 0.0)}, "a log-prob is above 0 or not finite"),
        ({"logprobs": (0.0, 0.0, 0.0, math.nan, 0.0)}, "a log-prob is above 0 or not finite"),
        ({"logprobs": (0.0, 0.0, 0.0, -math.inf, 0.0)}, "a log-prob is above 0 or not finite"),
        ({"reward": math.nan}, "its reward is nan; a reward is finite, or null while not known"),
        ({"reward": math.inf}, "its reward is inf"),
        ({"reward": -math.inf}, "its reward is -inf"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(TidemillError, match=said) as raised:
        schema.to_arrow([ROW, replace(ROW, experience_id="culprit", **changes)])
    assert str(raised.value).startswith("experience culprit: ")


def test_rounding_above_zero_is_no_error() -> None:
    schema.validate(replace(ROW, logprobs=(0.0, 0.0, 0.0, 1e-6, 0.0)))


@pytest.mark.parametrize("metadata", [{"tidemill.schema": "2"}, {}, None])
def test_columns_of_another_version_are_refused(metadata: dict[str, str] | None) -> None:
    schema.check_version(schema.to_arrow([ROW]).schema, "here")
    with pytest.raises(SegmentError, match=r"segments/a.parquet has columns of version (2|\?), this code has 1; upgrade tidemill"):
        schema.check_version(pa.schema([("a", pa.int32())], metadata=metadata), "segments/a.parquet")


def test_every_field_of_an_experience_has_a_column() -> None:
    assert set(schema.EXPERIENCES.names) == set(Experience.__slots__)
    assert schema.EXPERIENCES.metadata == {b"tidemill.schema": b"1"}


def test_what_has_no_form_in_json_becomes_text() -> None:
    assert schema.jsonable([("b", {1}), ("a", StopReason.EOS), ("c", "\ud800")]) == '{"a": "eos", "b": "{1}", "c": "\\ud800"}'
