"""What nobody reported and everybody meets: odd text, odd numbers, odd clocks, rows of any length, and several writers at once."""

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rft_core.buffer import Questions
from rft_core.buffer.export import export_rows
from rft_core.errors import TidemillError
from tests.buffer.compacting import check_files, everything, squeeze
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_each, group_id, row
from tests.tasks.runs import Runs

TEXTS = ["a\0b", "\ud800", "\udfff\ud800 swapped", "\U0001f600\ufffe", "line\r\n\u2028\x85", "'\"; drop table groups --", "", "\\ud800"]
STORED = [text.encode("utf-8", "backslashreplace").decode() for text in TEXTS]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    opened = Table(tmp_path / "table", pipeline="p")
    yield opened
    opened.close()


def test_odd_text_through_append_questions_overlay_and_export(table: Table, tmp_path: Path) -> None:
    """NUL, lone surrogates and separators, in every place that holds text; what has no form is escaped, and nothing else is changed."""
    leases = table.lease(len(TEXTS))
    for lease, text in zip(leases, TEXTS, strict=True):
        told: dict[str, Any] = {"prompt_text": text, "response_text": text, "error": text, "info": {"key": text, "k\0\ud800": [text]}}
        table.store.append(f"slot-{lease.slot}", [row(lease, 0, **told), row(lease, 1)], "e", 1)
    table.shape()
    groups = table.store.groups([group_id(lease) for lease in leases], "p")
    assert [group.rows[0].response_text for group in groups] == STORED
    assert [group.rows[0].info["key"] for group in groups] == STORED
    question = "select prompt_text, response_text, error, info->>'key' as info from experiences where attempt = 0 order by slot"
    assert table.ask(question) == [dict.fromkeys(("prompt_text", "response_text", "error", "info"), text) for text in STORED]
    questions = Questions(table.storage, table.catalog, "p")
    assert export_rows(questions, question, tmp_path / "rows.parquet", "parquet") == len(TEXTS)
    assert pq.read_table(tmp_path / "rows.parquet")["response_text"].to_pylist() == STORED
    export_rows(questions, question, tmp_path / "rows.jsonl", "jsonl")
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    assert [json.loads(line)["response_text"] for line in lines] == STORED
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, (answer := questions.ask(question)).schema) as stream:
        stream.write_table(answer)
    assert pa.ipc.open_stream(sink.getvalue()).read_all()["error"].to_pylist() == STORED


def test_text_with_quotes_and_odd_characters_is_found_by_a_condition(table: Table) -> None:
    leases = table.lease(2)
    table.store.append("a", [row(lease, 0, response_text="it's \0" if lease.slot else "no") for lease in leases], "e", 1)
    questions = Questions(table.storage, table.catalog, "p")
    assert questions.groups_where("response_text like 'it''s %'") == {group_id(leases[1])}
    assert questions.groups_where("contains(response_text, chr(0))") == {group_id(leases[1])}


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, np.float32("nan"), "1.0", [1.0], 10**400])
def test_a_reward_that_is_no_finite_number_is_refused_by_row(reward: Any, table: Table) -> None:
    (lease,) = table.lease()
    good, bad = row(lease, 0), row(lease, 1, reward=reward)
    with pytest.raises(
        TidemillError, match=f"^experience {bad.experience_id}: its reward is .*; a reward is finite, or null while not known"
    ):
        table.store.append("a", [good, bad], "e", 1)
    assert table.files("segments") == set()
    assert table.catalog.leases.open(1) == [lease]


@pytest.mark.parametrize(
    ("reward", "stored"),
    [(True, 1.0), (False, 0.0), (np.float32(0.5), 0.5), (np.int64(2), 2.0), (np.bool_(True), 1.0), (np.array(0.25), 0.25)],
)
def test_a_reward_that_is_some_kind_of_number_is_stored_as_one(reward: Any, stored: float, table: Table) -> None:
    (lease,) = append_each(table, "a", [(reward, 0.0)])
    assert table.store.groups([group_id(lease)])[0].rows[0].reward == stored
    assert table.ask("select max(reward) as high, max(priority) as p from experiences join groups using (group_id)") == [
        {"high": stored, "p": 0.0}
    ]


def test_a_group_of_one_is_stored_scored_and_chosen(table: Table) -> None:
    priority = build("priority")
    table.store.terms = replace(table.store.terms, score=priority.score)
    append_each(table, "a", [(1.0,), (1.0, 0.0)])
    table.shape()
    assert slots(table, table.choose(1, priority, table.take_over())) == [1, 0]
    assert table.look("select size, priority from groups order by slot") == [{"size": 1, "priority": 0.0}, {"size": 2, "priority": 0.5}]
    assert table.ask("select count(*) as n from preferences") == [{"n": 1}]


def test_one_task_twice_in_a_batch_is_two_groups(runs: Runs) -> None:
    """A task set that holds a row twice: nothing is overwritten, and the groups are compared each for itself."""
    values = runs.recipe("aa", steps=1)
    source = Path(values["data"]["train"]["source"])
    first = source.read_text().splitlines()[0]
    source.write_text(f"{first}\n{first}\n")
    runs.run(values)
    found = runs.look(values)
    assert found.ask("select count(distinct task_id) as t, count(distinct group_id) as g, count(*) as n from experiences") == [
        {"t": 1, "g": 2, "n": 4}
    ]
    assert found.fates == {"trained": 2}
    assert found.metric("batch/num_groups") == [2.0]


def back(table: Table, days: float) -> None:
    """The database's clock jumps back: all that was written lies in the future."""
    stamps = {
        "leases": ("issued_at", "leased_until"),
        "intents": ("created_at",),
        "segments": ("created_at",),
        "labels": ("created_at",),
        "groups": ("due_at",),
    }
    with table.catalog._database.write() as connection:
        for name, columns in stamps.items():
            for column in columns:
                connection.exec_driver_sql(f"update {name} set {column} = {column} + {86_400 * days}")


def test_a_clock_that_jumps_back_loses_nothing(table: Table) -> None:
    (lease,) = append_each(table, "before", [(1, 0)])
    first = table.store.groups([group_id(lease)])[0].rows[0].experience_id
    table.label({first: 0.25})
    table.lease(1, step=2)
    table.catalog.segments.intend("torn", "segments/torn-1.parquet", "explorer-7")
    table.storage.write("segments/torn-1.parquet", b"")
    back(table, days=30)
    # A lease that ends in a month was given before the jump: it is issued again, and so is its slot.
    again = table.lease(0, step=2)
    assert [found.epoch for found in again] == [1]
    table.append("after", again)
    table.label({first: 0.75})
    table.shape()
    assert [group.labelled for group in table.store.groups([group_id(lease)])] == [{first: 0.75}]  # the newest by its number
    assert table.ask("select labelled_reward as r from experiences where labelled_reward is not null") == [{"r": 0.75}]
    claim = table.claim(3, table.take_over())
    assert len(claim.group_ids) == 2
    table.store.sweep()
    assert table.catalog.segments.intended_uris() == []
    done = squeeze(table, max_age_days=7)
    assert done.let_go == 0
    assert table.ask("select count(*) as n from experiences") == [{"n": 4}]
    check_files(table)


def test_rows_of_a_hundred_thousand_tokens(table: Table) -> None:
    rng, length = np.random.default_rng(0), 100_000
    leases = table.lease(2)
    long: dict[str, Any] = {
        "tokens": tuple(rng.integers(0, 150_000, length).tolist()),
        "action_mask": (False,) * 1000 + (True,) * (length - 1000),
        "logprobs": (0.0,) * 1000 + tuple(np.float32(-rng.random(length - 1000)).tolist()),
        "prompt_length": 1000,
        "response_text": "word " * length,
    }
    rows = [row(lease, attempt, **long) for lease in leases for attempt in range(2)]
    table.store.append("long", rows, "e", 1)
    append_each(table, "short", [(1, 0)], step=2)
    table.shape()
    assert table.store.groups([group_id(leases[1])])[0].rows == tuple(rows[2:])
    question = (
        "select len(tokens) as n, list_sum(tokens) as s, len(response_text) as t from experiences order by step, slot, attempt limit 1"
    )
    assert table.ask(question) == [{"n": length, "s": sum(long["tokens"]), "t": 5 * length}]
    table.claim(2, table.take_over())
    assert squeeze(table).made == 2
    assert table.store.groups([group_id(leases[1])])[0].rows == tuple(rows[2:])


def test_an_empty_table_answers_and_has_nothing_to_do(table: Table) -> None:
    assert everything(table)["experiences"] == []
    assert table.store.settle() == (0, 0)
    table.store.sweep()
    done = squeeze(table, max_rows=1, max_age_days=0.1, max_bytes=1)
    assert (done.merged, done.let_go, done.deleted) == (0, 0, 0)


def write(root: Path, name: str, count: int) -> None:
    table = Table(root, pipeline="p", writer=name)
    for number in range(count):
        table.append(f"{name}-{number}", table.catalog.leases.issue(1, 2, name, lambda position: f"task-{position}", None))
        if name == "explorer-0":
            table.shape()
    table.close()


def test_two_writers_and_a_compaction_on_one_table(table: Table) -> None:
    """SQLite is locked for milliseconds at a time: nobody fails, and nothing is lost or there twice."""
    generation = table.take_over()
    with ThreadPoolExecutor(2) as writers:
        writing = [writers.submit(write, table.run_dir.root, f"explorer-{number}", 8) for number in range(2)]
        step = 0
        while not all(writer.done() for writer in writing):
            step += 1
            table.claim(step, generation, count=2, version=0)
            squeeze(table)
        for writer in writing:
            writer.result()
    table.shape()
    table.claim(step + 1, generation, version=0)
    squeeze(table)
    assert table.ask("select count(*) as n, count(distinct slot) as s from experiences") == [{"n": 64, "s": 32}]
    assert table.look("select uses, count(*) as n from groups group by 1") == [{"uses": 1, "n": 32}]
    check_files(table)
