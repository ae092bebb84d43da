"""The order without end: every epoch whole, every position a pure function."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rft_core.config import FormatConfig, TaskSetConfig
from rft_core.errors import DataError
from rft_core.taskset import TaskSet, available_locally, open_taskset


class ListRows:
    """Rows in memory."""

    content = "memory"

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"prompt": f"task {index}", "answer": index}


def in_memory(size: int, seed: int = 0, order: str = "shuffled") -> TaskSet:
    return TaskSet(TaskSetConfig.model_validate({"source": "memory", "order": order}), ListRows(size), seed)


def write(path: Path, rows: list[dict[str, object]]) -> TaskSetConfig:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TaskSetConfig(source=str(path))


@settings(deadline=None)
@given(size=st.integers(1, 40), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 10**6))
def test_each_epoch_holds_each_task_exactly_once(size: int, seed: int, epoch: int) -> None:
    tasks = in_memory(size, seed)
    positions = range(epoch * size, (epoch + 1) * size)
    assert sorted(int(tasks.at(position).answer or -1) for position in positions) == list(range(size))
    assert {tasks.epoch(position) for position in positions} == {epoch}


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**63 - 1), positions=st.lists(st.integers(0, 200), max_size=20))
def test_a_position_alone_names_the_task(seed: int, positions: list[int]) -> None:
    tasks, resumed = in_memory(17, seed), in_memory(17, seed)
    straight = [tasks.at(position) for position in range(201)]
    assert [resumed.at(position) for position in positions] == [straight[position] for position in positions]


def test_shuffled_epochs_and_seeds_differ_and_sequential_ones_do_not() -> None:
    def order(tasks: TaskSet, epoch: int) -> list[str | None]:
        return [tasks.at(position).answer for position in range(epoch * 30, epoch * 30 + 30)]

    shuffled = in_memory(30, seed=1)
    assert len({tuple(order(shuffled, epoch)) for epoch in range(4)}) == 4
    assert order(shuffled, 0) != order(in_memory(30, seed=2), 0)
    sequential = in_memory(30, order="sequential")
    assert order(sequential, 0) == order(sequential, 3) == [str(i) for i in range(30)]


def test_the_order_is_the_same_in_every_release() -> None:
    assert [in_memory(10, seed=7).at(position).answer for position in range(12)] == [
        "6",
        "3",
        "8",
        "1",
        "0",
        "7",
        "2",
        "9",
        "5",
        "4",
        "1",
        "2",
    ]


def test_the_fingerprint_tells_whatever_changes_the_tasks_or_their_order(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]
    config = write(tmp_path / "tasks.jsonl", rows)
    copied = write(tmp_path / "copied.jsonl", rows)
    other = write(tmp_path / "other.jsonl", rows[::-1])
    form = config.model_copy(update={"format": FormatConfig(system="Be brief.")})
    different = [
        open_taskset(config, 0),
        open_taskset(config, 1),
        open_taskset(other, 0),
        open_taskset(form, 0),
        open_taskset(config.model_copy(update={"limit": 1}), 0),
        open_taskset(config.model_copy(update={"order": "sequential"}), 0),
    ]
    assert len({tasks.fingerprint for tasks in different}) == len(different)
    assert open_taskset(copied, 0).fingerprint == open_taskset(config, 0).fingerprint


def test_a_row_that_is_there_twice_has_two_positions_and_one_id(tmp_path: Path) -> None:
    row: dict[str, object] = {"prompt": "a", "answer": "1"}
    tasks = open_taskset(write(tmp_path / "tasks.jsonl", [row, row, {"prompt": "b", "answer": "1"}]), 0)
    ids = [tasks.at(position).task_id for position in range(3)]
    assert len(tasks) == 3
    assert sorted(map(ids.count, ids)) == [1, 2, 2]


def test_an_empty_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no rows; a task set needs at least one"):
        open_taskset(write(tmp_path / "tasks.jsonl", []), 0)


@pytest.mark.parametrize("source", ["none.jsonl", "none.parquet", "reasoning-gym:gcd"])
def test_only_hugging_face_sets_may_need_the_network(source: str) -> None:
    assert available_locally(TaskSetConfig(source=source))
