"""Exports of rows: whole or not there, and the same rows in every form."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_core.buffer import Questions
from rft_core.buffer.export import EVERYTHING, FORMS, Form, export_rows
from rft_core.errors import QueryError, SegmentError, UserError
from tests.buffer.table import Table, row

STRANGE = 'naïve 日本 \\ "quoted"\nsecond line \U0001f600'


@pytest.fixture
def filled(table: Table) -> Table:
    """A table of two segments: ordinary rows, and one with strange text, no reward, and nothing in its maps."""
    first, second = table.lease(2)
    table.append("a", [first])
    rows = [row(second, response_text=STRANGE, reward=None, reward_parts={}, info={STRANGE: [1, None, {"b": 1.5}]}, turn_rewards=(0.5,))]
    table.store.append("b", rows, "explorer", 1)
    return table


def export(table: Table, target: Path, form: Form, question: str = EVERYTHING) -> int:
    return export_rows(Questions(table.storage, table.catalog, None), question, target, form)


def read(target: Path, form: Form) -> list[dict[str, Any]]:
    """The rows of an export, as its users read them."""
    if form == "jsonl":
        return [json.loads(line) for line in target.read_bytes().decode("utf-8").splitlines()]
    if form == "parquet":
        return [dict(found) for found in pq.read_table(target).to_pylist(maps_as_pydicts="strict")]
    datasets = pytest.importorskip("datasets")
    return list(datasets.load_from_disk(str(target)))


@pytest.mark.parametrize("form", FORMS)
def test_every_row_comes_back_in_every_form(filled: Table, tmp_path: Path, form: Form) -> None:
    target = tmp_path / "deep" / "out"
    assert export(filled, target, form) == 3
    rows = sorted(read(target, form), key=lambda found: (found["slot"], found["attempt"]))
    assert [found["reward"] for found in rows] == [1.0, 0.0, None]
    assert [found["fate"] for found in rows] == ["ready", "ready", "pending"]
    assert rows[2]["response_text"] == STRANGE
    info = [json.loads(found["info"]) if form == "parquet" else found["info"] for found in rows]
    assert info[0] == {"reason": "equal", "nested": [1, {"a": None}]}
    assert info[2] == {STRANGE: [1, None, {"b": 1.5}]}
    assert [found["reward_parts"] for found in rows] == [{"exact": 1.0, "format": 0.5}, {"exact": 1.0, "format": 0.5}, {}]
    assert rows[0]["tokens"] == [5, 6, 7, 8, 9]
    assert rows[0]["action_mask"] == [False, False, False, True, True]
    assert rows[0]["logprobs"] == [0.0, 0.0, 0.0, -0.5, -1.25]
    assert rows[2]["turn_rewards"] == [0.5]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


@pytest.mark.parametrize("form", FORMS)
def test_a_question_says_which_rows(filled: Table, tmp_path: Path, form: Form) -> None:
    question = "select slot, count(*) as n, sum(attempt) as s, map {'a': slot} as m from experiences group by all order by slot"
    assert export(filled, tmp_path / "out", form, question) == 2
    found = read(tmp_path / "out", form)
    assert found == [{"slot": 0, "n": 2, "s": 1, "m": {"a": 0}}, {"slot": 1, "n": 1, "s": 0, "m": {"a": 1}}]


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_without_rows_is_written_too(filled: Table, tmp_path: Path, form: Form) -> None:
    assert export(filled, tmp_path / "out", form, "select * from experiences where reward > 7") == 0
    assert read(tmp_path / "out", form) == []


def test_a_long_answer_is_written_part_by_part(table: Table, tmp_path: Path) -> None:
    question = "select i, i % 7 as rest from range(123456) numbers(i)"
    assert export(table, tmp_path / "out.parquet", "parquet", question) == 123_456
    parquet = pq.ParquetFile(tmp_path / "out.parquet")
    assert parquet.num_row_groups > 10
    assert sum(parquet.read(["i"])["i"].to_pylist()) == sum(range(123_456))


def test_what_json_has_no_form_for_becomes_what_comes_nearest(table: Table, tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    question = """
select 'nan'::double as a, ['inf'::double, 1.5] as b, map {'x': '-inf'::double} as c, 12.50::decimal(5, 2) as d, date '2026-01-02' as e,
       'no json' as info"""
    export(table, tmp_path / "out.jsonl", "jsonl", question)
    line = json.loads((tmp_path / "out.jsonl").read_text(), parse_constant=refuse)
    assert line == {"a": None, "b": [None, 1.5], "c": {"x": None}, "d": 12.5, "e": "2026-01-02", "info": "no json"}


@pytest.mark.parametrize("form", FORMS)
def test_what_fails_leaves_nothing(filled: Table, tmp_path: Path, form: Form) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for question, problem in (
        ("select nothing from experiences", "nothing"),
        ("select case when attempt = 0 then 1 else cast(response_text || 'x' as int) end from experiences", "Could not convert"),
        ("select 1 as a, 2 as a", "more than one column a"),
    ):
        with pytest.raises(QueryError, match=problem) as caught:
            export(filled, folder / "out", form, question)
        assert len(str(caught.value.found).splitlines()) <= 5
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "forms"),
    [
        ("'infinity'::timestamp", {"parquet", "datasets"}),
        ("date '10000-01-01'", {"parquet", "datasets"}),
        ("[date '0044-01-01 (BC)']", {"parquet", "datasets"}),
        ("'infinity'::timestamp_s", {"datasets"}),
        ("interval 1 day", {"jsonl"}),
        ("union_value(a := 1)", {"jsonl"}),
        ("struct_pack()", {"jsonl", "datasets"}),
        ("map {}", {"jsonl", "datasets"}),
        ("map {[1]: 2}", {"parquet"}),
        ("map {1.5: 2}", {"parquet", "jsonl", "datasets"}),
        ("map {date '2026-01-02': 2}", {"parquet", "jsonl", "datasets"}),
        ("'x'::enum ('x', 'y')", {"parquet", "jsonl", "datasets"}),
    ],
)
def test_a_column_that_has_no_such_form_is_named(table: Table, tmp_path: Path, value: str, forms: set[Form]) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    for form in FORMS:
        if form in forms:
            assert export(table, folder / form, form, f"select 1 as good, {value} as odd") == 1
        else:
            with pytest.raises(QueryError, match=r"^the column odd has no such form: it is .* \(.+\); make it a text") as raised:
                export(table, folder / form, form, f"select 1 as good, {value} as odd")
            assert len(str(raised.value).splitlines()) == 1
    assert {path.name for path in folder.iterdir()} == forms


def test_keys_that_json_has_no_type_for_are_texts(table: Table, tmp_path: Path) -> None:
    question = (
        "select map {1.5: 'a', 2: 'b'} as d, [map {date '2026-01-02': 'inf'::double}] as e, map {'nan'::double: 1} as f, map {7: 1} as g"
    )
    export(table, tmp_path / "out.jsonl", "jsonl", question)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {
        "d": {"1.5": "a", "2": "b"},
        "e": [{"2026-01-02": None}],
        "f": {"nan": 1},
        "g": {"7": 1},
    }


@pytest.mark.parametrize("form", FORMS)
def test_rows_that_are_missing_or_damaged_are_not_left_out_silently(filled: Table, tmp_path: Path, form: Form) -> None:
    path = filled.segment_file("a")
    content = path.read_bytes()
    altered = bytearray(content)
    for position in range(len(content) // 4, len(content) // 2):
        altered[position] ^= 255
    for broken in (None, content[:-9], bytes(altered)):
        path.unlink(missing_ok=True)
        if broken is not None:
            path.write_bytes(broken)
        with pytest.raises(SegmentError, match=path.name):
            export(filled, tmp_path / "out", form)
    assert not (tmp_path / "out").exists()
    path.write_bytes(content)
    assert export(filled, tmp_path / "out", form) == 3


def test_what_is_there_is_not_overwritten(filled: Table, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for form in FORMS:
        with pytest.raises(UserError, match="is there already"):
            export(filled, tmp_path / "out", form)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_target_that_can_not_be_written_is_one_line(filled: Table, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for form in FORMS:
        with pytest.raises(UserError, match="can't write below"):
            export(filled, tmp_path / "file" / "out", form)


@pytest.fixture(autouse=True)
def no_memory_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    assert pa.total_allocated_bytes() < 50_000_000
