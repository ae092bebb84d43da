"""Columns of older versions are brought to the present ones; what this code can't know is refused in one line."""

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from rft_core.buffer import rows, schema
from rft_core.catalog import Lease
from rft_core.errors import SegmentError
from rft_core.types import Experience, Source
from tests.buffer.table import row

ROW = row(Lease("l", 1, 0, 0, "t", 0))
LATER = ("stop_reason", "reward_parts", "turn_rewards", "teacher_logprobs", "source", "error", "info", "created_at")


def version_0() -> pa.Table:
    """Rows as an older version had them: fewer columns, in another order, wider integers, and one that is gone."""
    table = rows.to_arrow([ROW]).drop_columns(LATER)
    names = sorted(table.schema.names)
    wide = {pa.int32(): pa.int64(), pa.list_(pa.int32()): pa.list_(pa.int64())}
    columns = {name: table[name].cast(wide.get(table[name].type, table[name].type)) for name in names}
    return pa.table({**columns, "gone": ["x"]}, metadata={"tidemill.schema": "0"})


def with_column(name: str, values: pa.Array) -> pa.Table:
    table = rows.to_arrow([ROW])
    return table.set_column(table.schema.names.index(name), name, values)


def test_every_field_of_an_experience_has_a_column() -> None:
    assert set(schema.EXPERIENCES.names) == set(Experience.__slots__)
    assert schema.EXPERIENCES.metadata == {b"tidemill.schema": b"1"}


@pytest.mark.parametrize("version", ["0", "1"])
def test_this_version_and_older_ones_are_read(version: str) -> None:
    schema.check_version(schema.EXPERIENCES.with_metadata({"tidemill.schema": version}), "here")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(SegmentError) as raised:
        schema.check_version(schema.EXPERIENCES.with_metadata({"tidemill.schema": "12"}), "segments/a.parquet")
    assert str(raised.value) == "segments/a.parquet has columns of version 12, this code has 1; upgrade tidemill"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "its metadata has no `tidemill.schema`"),
        ({"pandas": "{}"}, "its metadata has no `tidemill.schema`"),
        ({"tidemill.schema": "one"}, "its metadata says 'one' as `tidemill.schema`"),
        ({"tidemill.schema": "-1"}, "its metadata says '-1' as `tidemill.schema`"),
        ({"tidemill.schema": b"\xff"}, "its metadata says '\\\\xff' as `tidemill.schema`"),
    ],
)
def test_the_right_columns_without_a_version_are_refused(metadata: dict[str, str] | None, said: str) -> None:
    with pytest.raises(SegmentError) as raised:
        schema.check_version(schema.EXPERIENCES.with_metadata(metadata), "a.parquet")
    assert str(raised.value) == f"a.parquet is not a segment of Tidemill: {said}; each segment has its version there"


def test_an_older_version_is_brought_to_this_one() -> None:
    upgraded = schema.upgrade(version_0())
    assert upgraded.schema.equals(schema.EXPERIENCES, check_metadata=True)
    assert [name for name in upgraded.schema.names if upgraded[name].null_count] == list(LATER)
    (found,) = rows.from_arrow(upgraded)
    assert (found.tokens, found.logprobs, found.reward) == (ROW.tokens, ROW.logprobs, ROW.reward)
    assert (found.stop_reason, found.source, found.reward_parts, found.info) == (None, Source.POLICY, {}, {})
    assert (found.teacher_logprobs, found.turn_rewards, found.error, found.created_at) == ((), (), None, 0.0)


def test_this_version_stays_as_it_is() -> None:
    table = rows.to_arrow([ROW])
    assert schema.upgrade(table).equals(table, check_metadata=True)
    read = pq.read_table(pa.BufferReader(rows.write_parquet(table)))
    assert schema.upgrade(read).equals(table, check_metadata=True)
    assert schema.upgrade(schema.EXPERIENCES.empty_table()).num_rows == 0


def test_files_of_several_versions_are_one_dataset(tmp_path: Path) -> None:
    pq.write_table(version_0(), tmp_path / "old.parquet")
    pq.write_table(rows.to_arrow([ROW]), tmp_path / "new.parquet")
    files = [str(tmp_path / name) for name in ("old.parquet", "new.parquet")]
    table = pads.dataset(files, schema=schema.EXPERIENCES, format="parquet").to_table()
    assert table["attempt"].to_pylist() == [0, 0]
    assert table["source"].to_pylist() == [None, "policy"]
    assert table["tokens"].to_pylist() == [list(ROW.tokens)] * 2


def test_a_column_that_every_version_has_may_not_be_missing() -> None:
    with pytest.raises(SegmentError, match=r"^segments/a.parquet has no column tokens; "):
        schema.upgrade(rows.to_arrow([ROW]).drop_columns(["tokens"]), "segments/a.parquet")


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("group_id", pa.array([None], pa.string()), "a.parquet, column group_id, row 0 is null; no row may be without it"),
        ("tokens", pa.array([[1, None]], pa.list_(pa.int32())), "a.parquet, column tokens has a null among the values of a row"),
        ("attempt", pa.array([2**31]), "a.parquet, column attempt is int64: Integer value 2147483648 not in range"),
        ("reward", pa.array(["high"]), "a.parquet, column reward is string: Failed to parse string: 'high'"),
        ("reward_parts", pa.array([{"exact": 1.0}]), "a.parquet, column reward_parts is struct<exact: double>: Unsupported cast"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_file_and_column(name: str, values: pa.Array, said: str) -> None:
    with pytest.raises(SegmentError) as raised:
        schema.upgrade(with_column(name, values), "a.parquet")
    assert str(raised.value).startswith(said)
    assert "\n" not in str(raised.value)


def test_bytes_that_are_no_text_are_refused_wherever_they_are() -> None:
    schema.check_text(pa.table({"a": ["ü", None], "b": [1, 2]}), "x")
    bad = pa.array([b"fine", None, b"TREL\xc3"], pa.binary())
    for values in (bad.view(pa.string()), bad.cast(pa.large_binary()).view(pa.large_string())):
        with pytest.raises(SegmentError, match=r"^x, column a, row 2 is not UTF-8: b'TREL\\xc3'; "):
            schema.check_text(pa.table({"a": values}), "x")
    nested = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), bad.view(pa.string()))
    with pytest.raises(SegmentError, match=r"^x, column a can't be read: .*Invalid UTF8 sequence at string index 2"):
        schema.check_text(pa.table({"a": nested}), "x")
