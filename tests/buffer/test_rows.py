"""Rows go through Arrow and Parquet and come back as they were; what can't be right is refused, by row and value."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rft_core.buffer import forms, rows, schema
from rft_core.catalog import Lease
from rft_core.errors import SegmentError, TidemillError
from rft_core.types import Experience, Source, StopReason
from tests.buffer.table import row

ROW = row(Lease("l", 1, 0, 0, "t", 0))
SPARSE = replace(
    ROW,
    experience_id="sparse",
    reward=None,
    stop_reason=None,
    error="RewardError: no",
    source=Source.EXPERT,
    turn_rewards=(0.5, -1.0),
    teacher_logprobs=(-1.0,) * 5,
    reward_parts={},
    info={},
)
NOTHING = replace(ROW, experience_id="nothing", tokens=(), action_mask=(), logprobs=(), prompt_length=0)
ODD_TEXT = "a\0b \ufffe \U0001f600 \ud800 'quoted' \n"


def through_parquet(experiences: list[Experience]) -> pa.Table:
    return schema.upgrade(pq.read_table(pa.BufferReader(rows.write_parquet(rows.to_arrow(experiences)))))


def back(experiences: list[Experience]) -> list[Experience]:
    return rows.from_arrow(through_parquet(experiences))


def refused(**changes: Any) -> str:
    with pytest.raises(TidemillError) as raised:
        rows.to_arrow([ROW, replace(ROW, **{"experience_id": "culprit", **changes})])
    assert "\n" not in str(raised.value)
    return str(raised.value)


def long_row(length: int, experience_id: str) -> Experience:
    return replace(
        ROW,
        experience_id=experience_id,
        tokens=tuple(range(length)),
        action_mask=(False,) + (True,) * (length - 1),
        logprobs=tuple((np.arange(length, dtype=np.float32) / -np.float32(7)).tolist()),
        response_text="word " * length,
    )


def test_rows_come_back_as_they_were() -> None:
    assert back([ROW, SPARSE, NOTHING]) == [ROW, SPARSE, NOTHING]
    assert back([NOTHING]) == [NOTHING]
    assert back([]) == []


def test_slices_and_chunks_come_back_as_they_were() -> None:
    table = rows.to_arrow([ROW, SPARSE, NOTHING])
    assert rows.from_arrow(table.slice(1)) == [SPARSE, NOTHING]
    chunked = pa.concat_tables([table.slice(2), table.slice(0, 2)])
    assert rows.from_arrow(chunked) == [NOTHING, ROW, SPARSE]
    assert [tokens.tolist() for tokens in rows.to_arrays(chunked)["tokens"]] == [[], [*ROW.tokens], [*ROW.tokens]]


def test_rows_of_a_hundred_thousand_tokens_come_back() -> None:
    experiences = [long_row(100_000, "long"), NOTHING, long_row(100_001, "longer")]
    assert back(experiences) == experiences


def test_several_row_groups_are_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "ROWS_IN_GROUP", 2)
    experiences = [replace(ROW, experience_id=str(number), attempt=number) for number in range(5)]
    written = rows.write_parquet(rows.to_arrow(experiences))
    assert pq.ParquetFile(pa.BufferReader(written)).num_row_groups == 3
    assert back(experiences) == experiences


def test_arrays_are_views_of_the_table() -> None:
    table = rows.to_arrow([ROW, SPARSE])
    arrays = rows.to_arrays(table)
    assert list(arrays) == schema.EXPERIENCES.names
    buffer = table["logprobs"].chunk(0).values.buffers()[1]
    assert arrays["logprobs"][0].ctypes.data == buffer.address
    assert not arrays["logprobs"][0].flags.writeable and not arrays["action_mask"][0].flags.writeable
    assert [arrays[name][0].dtype for name in ("tokens", "action_mask", "logprobs")] == [np.int32, np.bool_, np.float32]
    assert [arrays[name][1].tolist() for name in ("tokens", "action_mask")] == [list(SPARSE.tokens), list(SPARSE.action_mask)]
    assert [len(values) for values in arrays["teacher_logprobs"]] == [0, 5]
    np.testing.assert_array_equal(arrays["reward"], [1.0, np.nan])
    np.testing.assert_array_equal(arrays["attempt"], [0, 0])
    assert arrays["reward_parts"] == [ROW.reward_parts, {}] and arrays["info"] == [ROW.info, {}]
    assert arrays["error"] == [None, "RewardError: no"] and arrays["source"] == ["policy", "expert"]
    assert list(rows.to_arrays(table.select(["reward", "tokens"]))) == ["reward", "tokens"]


@given(text=st.text(st.characters(exclude_categories=()), max_size=20), other=st.text(max_size=5))
def test_any_text_can_be_stored(text: str, other: str) -> None:
    (found,) = back([replace(ROW, prompt_text=text, response_text=other, error=text, info={"reason": text})])
    assert found.prompt_text == forms.clean_text(text) == found.error
    assert found.response_text == other
    assert found.info == {"reason": found.error}
    assert forms.clean_text(found.prompt_text) == found.prompt_text


def test_lone_surrogates_become_escapes_and_nothing_else_changes() -> None:
    assert forms.clean_text("a\ud800b\udfff\0ü\U0001f600") == "a\\ud800b\\udfff\0ü\U0001f600"


def test_every_reader_of_parquet_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    experiences = [replace(ROW, prompt_text=ODD_TEXT, response_text=ODD_TEXT, info={"reason": ODD_TEXT}), SPARSE, NOTHING]
    table = rows.to_arrow(experiences)
    path.write_bytes(rows.write_parquet(table))
    assert pq.read_table(path).equals(table)
    frame = pd.read_parquet(path)
    assert frame["prompt_text"].tolist() == table["prompt_text"].to_pylist()
    assert [list(tokens) for tokens in frame["tokens"]] == table["tokens"].to_pylist()
    with duckdb.connect() as connection:
        stored = connection.read_parquet(str(path))
        assert stored.to_arrow_table().cast(schema.EXPERIENCES).to_pylist() == table.to_pylist()
        question = "select list_sum(logprobs), reward_parts['exact'], info->>'reason' from stored where prompt_text = ?"
        assert connection.execute(question, [forms.clean_text(ODD_TEXT)]).fetchall() == [(-1.75, 1.0, forms.clean_text(ODD_TEXT))]


def test_the_values_that_conditions_name_have_statistics() -> None:
    file = pq.ParquetFile(pa.BufferReader(rows.write_parquet(rows.to_arrow([ROW, SPARSE]))))
    columns = [file.metadata.row_group(0).column(number) for number in range(file.metadata.num_columns)]
    known = {column.path_in_schema: column.statistics for column in columns if column.is_stats_set}
    assert (known["reward"].min, known["reward"].max, known["reward"].null_count) == (1.0, 1.0, 1)
    assert {"policy_version", "created_at"} <= set(known) and "response_text" not in known


@pytest.mark.parametrize("columns", [schema.OVERLAY, schema.EVALUATION])
def test_overlays_and_evaluations_are_written_the_same_way(columns: pa.Schema) -> None:
    table = pa.table([pa.nulls(3, field.type) for field in columns], schema=columns)
    assert pq.read_table(pa.BufferReader(rows.write_parquet(table))).equals(table)


@given(reward=st.none() | st.floats(allow_nan=False, allow_infinity=False), logprob=st.floats(-(2.0**100), 0.0, width=32))
def test_numbers_come_back_exactly(reward: float | None, logprob: float) -> None:
    (found,) = back([replace(ROW, reward=reward, logprobs=(0.0, 0.0, 0.0, logprob, 0.0))])
    assert found.reward == reward
    assert found.logprobs[3] == logprob


@pytest.mark.parametrize(
    ("reward", "stored"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.int64(-2), -2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (-0.0, -0.0),
        (5e-324, 5e-324),
    ],
)
def test_flags_and_numpy_scalars_are_numbers(reward: Any, stored: float) -> None:
    (found,) = back([replace(ROW, reward=reward, reward_parts={"exact": reward}, turn_rewards=(reward,), temperature=reward)])
    for value in (found.reward, found.reward_parts["exact"], found.turn_rewards[0], found.temperature):
        assert type(value) is float
        assert (value, math.copysign(1, value)) == (stored, math.copysign(1, stored))


NO_NUMBERS = [
    (math.nan, "nan"),
    (math.inf, "inf"),
    (-math.inf, "-inf"),
    (np.float32("nan"), "np.float32(nan)"),
    (10**400, "100000000000000000...0000000000000000000"),
    ("1.0", "'1.0'"),
    ([1.0], "[1.0]"),
    (np.array([1.0]), "array([1.])"),
    (1 + 0j, "(1+0j)"),
]


@pytest.mark.parametrize(("value", "shown"), NO_NUMBERS, ids=[shown for _, shown in NO_NUMBERS])
def test_a_reward_that_is_no_finite_number_is_refused(value: Any, shown: str) -> None:
    assert refused(reward=value) == f"experience culprit: its reward is {shown}; a reward is finite, or null while not known"


@pytest.mark.parametrize("value", [value for value, _ in NO_NUMBERS] + [None], ids=[shown for _, shown in NO_NUMBERS] + ["None"])
def test_a_part_or_a_turn_that_is_no_finite_number_is_refused(value: Any) -> None:
    assert refused(reward_parts={"exact": value}).startswith("experience culprit: its reward_parts is {'exact': ")
    assert refused(turn_rewards=(1.0, value)).startswith("experience culprit: its turn_rewards is (1.0, ")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action_mask": (True,)}, "action_mask has 1 entries for 5 tokens"),
        ({"logprobs": (0.0,) * 6}, "logprobs has 6 entries for 5 tokens"),
        ({"tokens": ()}, "action_mask has 5 entries for 0 tokens"),
        ({"teacher_logprobs": (0.0,)}, "teacher_logprobs has 1 entries for 5 tokens"),
        ({"tokens": None}, "its tokens is None; it has one entry a token"),
        ({"logprobs": 0.0}, "its logprobs is 0.0; it has one entry a token"),
        ({"tokens": (5, 6, -1, 8, 9)}, "tokens[2] is -1; a token id is an integer of 32 bits and not negative"),
        ({"tokens": (5, 6, 7, 2**31, 9)}, "tokens[3] is 2147483648; "),
        ({"tokens": (5, 6, 7, 8, 9.0)}, "tokens[4] is 9.0; "),
        ({"tokens": (None, 6, 7, 8, 9)}, "tokens[0] is None; "),
        ({"tokens": "abcde"}, "tokens[0] is 'a'; "),
        ({"action_mask": (0, 0, 0, 1, 2)}, "action_mask[4] is 2; a mask is of plain flags"),
        ({"action_mask": (0, 0, 0, 1, 256)}, "action_mask[4] is 256; "),
        ({"action_mask": (False, None, False, True, True)}, "action_mask[1] is None; "),
        ({"logprobs": (0.0, 0.0, 0.0, 0.5, 0.0)}, "logprobs[3] is 0.5; a log-prob is finite and not above 0"),
        ({"logprobs": (0.0, 0.0, 0.0, math.nan, 0.0)}, "logprobs[3] is nan; "),
        ({"logprobs": (0.0, 0.0, 0.0, 0.0, -math.inf)}, "logprobs[4] is -inf; "),
        ({"logprobs": (-1e39, 0.0, 0.0, 0.0, 0.0)}, "logprobs[0] is -1e+39; "),
        ({"logprobs": (0.0, None, 0.0, 0.0, 0.0)}, "logprobs[1] is None; "),
        ({"teacher_logprobs": (0.0, 0.0, 0.0, 0.0, math.nan)}, "teacher_logprobs[4] is nan; "),
    ],
)
def test_per_token_lists_that_cannot_be_right_are_refused(changes: dict[str, Any], said: str) -> None:
    assert refused(**changes).startswith(f"experience culprit: {said}")


def test_rounding_above_zero_is_no_error() -> None:
    (found,) = back([replace(ROW, logprobs=(0.0, 0.0, 0.0, 1e-6, 1e-4))])
    assert found.logprobs[3] == np.float32(1e-6)


def test_lists_and_arrays_are_stored_like_tuples() -> None:
    as_lists = replace(ROW, tokens=list(ROW.tokens), action_mask=list(ROW.action_mask), logprobs=list(ROW.logprobs))  # type: ignore[arg-type]
    as_arrays = replace(
        ROW,
        experience_id="arrays",
        tokens=np.array(ROW.tokens),  # type: ignore[arg-type]
        logprobs=np.array(ROW.logprobs, np.float32),  # type: ignore[arg-type]
        attempt=np.int64(3),  # type: ignore[arg-type]
    )
    assert back([as_lists, as_arrays]) == [ROW, replace(ROW, experience_id="arrays", attempt=3)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attempt": 1.0}, "its attempt is 1.0; it is an integer of 32 bits"),
        ({"policy_version": 2**31}, "its policy_version is 2147483648; it is an integer of 32 bits"),
        ({"temperature": math.nan}, "its temperature is nan; it is a finite number"),
        ({"temperature": None}, "its temperature is None; it is a finite number"),
        ({"prompt_text": None}, "its prompt_text is None; it is text"),
        ({"response_text": b"bytes"}, "its response_text is b'bytes'; it is text"),
        ({"error": 3}, "its error is 3; it is text"),
        ({"source": "robot"}, "its source is 'robot'; a source is one of policy, expert, human"),
        ({"source": None}, "its source is None; a source is one of policy, expert, human"),
        ({"stop_reason": "bored"}, "its stop_reason is 'bored'; a stop reason is one of "),
        ({"reward_parts": [("exact", 1.0)]}, "its reward_parts is [('exact', 1.0)]; each part of a reward is a finite number by its name"),
        ({"reward_parts": {3: 1.0}}, "its reward_parts is {3: 1.0}; "),
        ({"turn_rewards": 1.0}, "its turn_rewards is 1.0; the reward of a turn is a finite number"),
        ({"info": ["a"]}, "its info is ['a']; info is a mapping by names"),
        ({"group_id": "g\0"}, "its group_id is 'g\\x00'; an id is text without NUL and lone surrogates"),
        ({"task_id": "t\ud800"}, "its task_id is 't\\ud800'; "),
        ({"lease_id": 7}, "its lease_id is 7; "),
        ({"explorer": None}, "its explorer is None; "),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(changes: dict[str, Any], said: str) -> None:
    assert refused(**changes).startswith(f"experience culprit: {said}")


@pytest.mark.parametrize("experience_id", ["a\0", "\udfff", None, 3])
def test_an_experience_without_a_usable_id_is_named_by_its_place(experience_id: Any) -> None:
    assert refused(experience_id=experience_id).startswith(f"row 1: its experience_id is {experience_id!r}; ")


def test_an_experience_that_is_there_twice_is_refused() -> None:
    with pytest.raises(TidemillError, match=r"^experience twice is there twice in one append; an id names one row$"):
        rows.to_arrow([ROW, replace(ROW, experience_id="twice"), SPARSE, replace(ROW, experience_id="twice", attempt=1)])


class Silent:
    def __str__(self) -> str:
        raise RuntimeError


def circle() -> list[Any]:
    values: list[Any] = [1]
    values.append(values)
    return values


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"b", "a"}, ["a", "b"]),
        (frozenset({(1, 2)}), [[1, 2]]),
        (StopReason.EOS, "eos"),
        ("\ud800\0ü", "\\ud800\0ü"),
        (math.nan, "nan"),
        ([1.0, -math.inf], [1.0, "-inf"]),
        ({"a": {None: 1, 2: (3, math.inf)}}, {"a": {"None": 1, "2": [3, "inf"]}}),
        (np.float32(0.5), 0.5),
        (np.arange(2000), list(range(2000))),
        (np.array([math.nan, 1.0]), ["nan", 1.0]),
        (b"\xff", "b'\\xff'"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        (Path("a"), "a"),
        (10**18, 10**18),
        (Silent(), "(the text of a Silent raised RuntimeError)"),
    ],
)
def test_what_has_no_form_in_json_gets_one(value: Any, stored: Any) -> None:
    (found,) = back([replace(ROW, info={"value": value, "beside": 1})])
    assert found.info == {"value": stored, "beside": 1}


def test_an_integer_too_long_to_be_read_is_kept_as_text() -> None:
    (found,) = back([replace(ROW, info={"value": 1 << 20_000})])
    assert int(found.info["value"], 16) == 1 << 20_000


@pytest.mark.parametrize("make", [circle, lambda: [*json.loads("[" * 400 + "]" * 400), math.nan]])
def test_info_without_an_end_is_cut(make: Callable[[], Any]) -> None:
    (found,) = back([replace(ROW, info={"value": make()})])
    assert isinstance(found.info["value"], list)


def test_json_is_the_same_whatever_the_order() -> None:
    assert forms.jsonable([("b", 1), ("a", {"y": 1, "x": 2})]) == forms.jsonable([("a", {"x": 2, "y": 1}), ("b", 1)])


@pytest.mark.parametrize(("text", "said"), [("{", "Expecting property name"), ("{}, {}", "Extra data")])
def test_info_that_is_no_json_is_named(text: str, said: str) -> None:
    table = rows.to_arrow([ROW, SPARSE])
    torn = table.set_column(table.schema.names.index("info"), "info", pa.array(["{}", text]))
    with pytest.raises(SegmentError, match=f"^the info of row 1 is no JSON: {said}"):
        rows.from_arrow(torn)
