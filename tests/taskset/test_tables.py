"""Task sets in files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_core.config import TaskSetConfig
from rft_core.errors import DataError
from rft_core.taskset import TaskSet, open_taskset


def opened(path: Path, **more: object) -> TaskSet:
    return open_taskset(TaskSetConfig.model_validate({"source": str(path), "order": "sequential", **more}), 0)


def test_json_rows_may_differ_in_fields_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes('\ufeff{"prompt": "ä", "answer": "1"}\n\n{"prompt": "b", "level": 3}\r\n'.encode())
    tasks = opened(path)
    assert [tasks.task(i).answer for i in range(2)] == ["1", None]
    assert [dict(tasks.task(i).facts) for i in range(2)] == [{"prompt": "ä"}, {"prompt": "b", "level": 3}]


def test_the_same_row_of_both_kinds_of_file_is_the_same_task(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "tags": ["x"]}\n')
    rows = [{"prompt": "a", "answer": "1", "tags": None}, {"prompt": "b", "answer": None, "tags": ["x"]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    json_tasks, parquet_tasks = opened(tmp_path / "tasks.jsonl"), opened(tmp_path / "tasks.parquet")
    assert [json_tasks.task(i) for i in range(2)] == [parquet_tasks.task(i) for i in range(2)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_limit_takes_the_first_rows(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"tasks.{suffix}"
    if suffix == "jsonl":
        path.write_text('{"prompt": "0"}\n{"prompt": "1"}\nnot JSON\n')
    else:
        pq.write_table(pa.table({"prompt": ["0", "1", "2"]}), path)
    tasks = opened(path, limit=2)
    assert [tasks.at(i).messages[0].content for i in range(4)] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": ', "a.jsonl line 2 is not JSON"),
        ("a.jsonl", b'\n["prompt"]\n', "a.jsonl line 2 is a list; each line is one JSON object"),
        ("a.jsonl", b'{"prompt": "\xff"}', "a.jsonl line 1 is not JSON ('utf-8' codec can't decode"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl line 1 is not JSON"),
        ("a.parquet", b"PAR1 and no more", "a.parquet can't be read"),
        ("a.csv", b"prompt\na\n", "no task set is called"),
    ],
)
def test_a_file_that_can_not_be_read_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        opened(tmp_path / name)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["none.jsonl", "none.parquet", "folder.jsonl"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=f"there is no file .*{name}; paths are relative"):
        opened(tmp_path / name)


def test_text_of_a_parquet_file_that_is_not_utf8_names_the_row(tmp_path: Path) -> None:
    raw = pa.array([b"fine", b"TREL\xc3"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    pq.write_table(pa.table({"prompt": broken}), tmp_path / "a.parquet")
    tasks = opened(tmp_path / "a.parquet")
    assert tasks.task(0).messages[0].content == "fine"
    with pytest.raises(DataError, match="row 2 holds text that is not UTF-8"):
        tasks.task(1)
