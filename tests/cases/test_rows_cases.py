"""Public reports about rows in Parquet files: what is written, and what DuckDB and Arrow read. Each test cites its report."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from rft_core.buffer import rows, schema
from rft_core.catalog import Lease
from rft_core.errors import SegmentError, TidemillError
from rft_core.types import Experience
from tests.buffer.table import row

ROW = row(Lease("l", 1, 0, 0, "t", 0))
BARE: dict[str, Any] = {"reward": None, "stop_reason": None, "error": None, "reward_parts": {}, "turn_rewards": (), "info": {}}
FULL: dict[str, Any] = {"reward_parts": {"exact": 1.0}, "turn_rewards": (0.5,), "error": "text", "info": {"table": {"id": 1}}}


def written(path: Path, experience: Experience) -> str:
    path.write_bytes(rows.write_parquet(rows.to_arrow([experience])))
    return str(path)


@pytest.fixture
def bad_file(tmp_path: Path) -> Path:
    """A file of another program: the right columns, and bytes that are not UTF-8 among the texts."""
    table = rows.to_arrow([ROW, replace(ROW, experience_id="bad", attempt=1)])
    texts = pa.array([b"fine", b"TREL\xc3"], pa.binary()).view(pa.string())
    path = tmp_path / "bad.parquet"
    pq.write_table(table.set_column(table.schema.names.index("response_text"), "response_text", texts), path)
    return path


def test_b45_mask_ids_and_logprobs_have_one_length() -> None:
    """trl #5144: after a shorter re-tokenised completion the mask was longer than the ids."""
    with pytest.raises(TidemillError, match=rf"^experience {ROW.experience_id}: action_mask has 6 entries for 5 tokens; "):
        rows.to_arrow([replace(ROW, action_mask=(*ROW.action_mask, True))])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_d02_segments_whose_rewards_and_facts_have_other_names_are_one_table(tmp_path: Path, order: tuple[int, int]) -> None:
    """duckdb #7908: a struct with one more field failed, or lost that field without a word; a map and JSON have one type."""
    first = written(tmp_path / "0.parquet", replace(ROW, reward_parts={"exact": 1.0}, info={"prompt": "a"}))
    more = written(tmp_path / "1.parquet", replace(ROW, reward_parts={"exact": 0.0, "format": 0.5}, info={"prompt": "b", "table_id": 7}))
    files = [(first, more)[number] for number in order]
    question = "select reward_parts['format'], info->>'prompt', (info->>'table_id')::int from"
    expected = [[(None, "a", None), (0.5, "b", 7)][number] for number in order]
    with duckdb.connect() as connection:
        connection.register("stored", pads.dataset(files, schema=schema.EXPERIENCES))
        for source in (f"read_parquet({files})", f"read_parquet({files}, union_by_name = true)", "stored"):
            assert connection.sql(f"{question} {source}").fetchall() == expected


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_d03_a_column_without_any_value_keeps_its_type(tmp_path: Path, order: tuple[int, int]) -> None:
    """duckdb #22147, #20453; duckdb-python #257: a column that one file has all null became another type than in the next."""
    files = [
        (written(tmp_path / "0.parquet", replace(ROW, **BARE)), written(tmp_path / "1.parquet", replace(ROW, **FULL)))[i] for i in order
    ]
    assert all(pq.read_schema(file).equals(schema.EXPERIENCES) for file in files)
    question = "select reward, stop_reason, error, reward_parts, turn_rewards, teacher_logprobs from"
    expected = [[(None, None, None, {}, [], []), (1.0, "eos", "text", {"exact": 1.0}, [0.5], [])][i] for i in order]
    with duckdb.connect() as connection:
        connection.register("stored", pads.dataset(files, schema=schema.EXPERIENCES))
        for source in (f"read_parquet({files})", f"read_parquet({files}, union_by_name = true)", "stored"):
            assert connection.sql(f"{question} {source}").fetchall() == expected


def test_d03_a_column_that_an_older_file_does_not_have_is_null(tmp_path: Path) -> None:
    """duckdb #22147: STRUCT against NULL type; here a map, a list and a text against nothing at all, as in an older version."""
    old = tmp_path / "old.parquet"
    pq.write_table(rows.to_arrow([replace(ROW, **FULL)]).drop_columns(["reward_parts", "turn_rewards", "error"]), old)
    with duckdb.connect() as connection:
        new = written(tmp_path / "new.parquet", replace(ROW, **FULL))
        connection.register("stored", pads.dataset([str(old), new], schema=schema.EXPERIENCES))
        found = connection.sql("select reward_parts, turn_rewards, error from stored").fetchall()
    assert found == [(None, None, None), ({"exact": 1.0}, [0.5], "text")]
    (upgraded,) = rows.from_arrow(schema.upgrade(pq.read_table(old)))
    assert (upgraded.reward_parts, upgraded.turn_rewards, upgraded.error) == ({}, (), None)


def test_d06_bytes_that_are_no_text_are_refused_by_file_row_and_value(bad_file: Path) -> None:
    """duckdb #5882, #1932: one torn string was an internal error; Arrow hands it on until someone looks at it."""
    with pytest.raises(SegmentError) as raised:
        schema.upgrade(pq.read_table(bad_file), bad_file.name)
    assert str(raised.value) == ("bad.parquet, column response_text, row 1 is not UTF-8: b'TREL\\xc3'; restore the file from a copy")


def test_d06_a_question_over_such_a_file_fails_by_file_and_value_and_the_next_is_answered(bad_file: Path) -> None:
    """duckdb #5882: 'INTERNAL Error while querying from Parquet' left a dead connection."""
    with duckdb.connect() as connection:
        with pytest.raises(duckdb.InvalidInputException, match=r'Parquet file ".*bad.parquet": value "TREL\\xC3" is not valid UTF8'):
            connection.sql(f"select response_text from read_parquet('{bad_file}')").fetchall()
        assert connection.sql(f"select attempt from read_parquet('{bad_file}')").fetchall() == [(0,), (1,)]
        connection.register("stored", pads.dataset(str(bad_file), schema=schema.EXPERIENCES))
        answer = connection.sql("select response_text from stored").to_arrow_table()
        with pytest.raises(SegmentError, match=r"^the answer, column response_text, row 1 is not UTF-8: b'TREL\\xc3'; "):
            schema.check_text(answer, "the answer")
        assert connection.sql("select count(*) from stored where attempt = 1").fetchall() == [(1,)]


def test_d06_what_is_written_here_is_always_text(tmp_path: Path) -> None:
    """duckdb #5882: half a surrogate pair in a response has no UTF-8 form; it is stored as an escape, NUL as it is."""
    file = written(tmp_path / "a.parquet", replace(ROW, response_text="TREL\udcc3 \0 end", error="\ud800"))
    with duckdb.connect() as connection:
        found = connection.sql(f"select response_text, error from read_parquet('{file}')").fetchall()
    assert found == [("TREL\\udcc3 \0 end", "\\ud800")]
