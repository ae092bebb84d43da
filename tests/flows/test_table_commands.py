"""The commands that work on a run's table: run in process, over small tables, without a flow."""

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from flows.table import questions
from rft_core.buffer import STATE_VIEWS, VIEWS
from rft_core.disk import leftovers, remove_leftovers, write_whole
from rft_core.weights import WeightStore
from tests.buffer.table import Table, group_id
from tests.flows.commands import Rft, trained


def experiences(table: Table, key: str) -> list[str]:
    ids: list[str] = pq.read_table(table.segment_file(key), columns=["experience_id"])["experience_id"].to_pylist()
    return ids


def labels(path: Path, values: dict[str, float]) -> str:
    path.write_text("".join(json.dumps({"experience_id": name, "value": value}) + "\n" for name, value in values.items()))
    return str(path)


def test_a_run_that_never_started_is_one_line(rft: Rft, tmp_path: Path) -> None:
    Table(tmp_path / "runs" / "new").close()
    for command in (("show", "new"), ("sql", "new", "select 1"), ("fsck", "new"), ("compact", "new"), ("pin", "new", "x")):
        done = rft(*command)
        assert (done.code, done.out) == (2, "")
        assert done.complaints == ["rft: runs/new has no table yet; the run must have started once"]
    assert "new" in rft("show").out


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        (99, "schema 99, "),
        (0, "schema 0, "),
    ],
)
def test_a_catalog_that_this_code_does_not_know_is_one_line(rft: Rft, table: Table, version: int, problem: str) -> None:
    table.close()
    with sqlite3.connect(table.run_dir.catalog_file) as connection:
        connection.execute("update meta set value = ? where key = 'schema_version'", (version,))
    connection.close()
    for command in (("show", "asked"), ("fsck", "asked")):
        done = rft(*command)
        assert (done.code, done.out, len(done.complaints)) == (2, "", 1)
        assert problem in done.err
    listed = rft("show")
    assert listed.code == 0
    assert problem in listed.out


def test_a_postgres_that_is_down_is_one_line(rft: Rft, table: Table) -> None:
    lines = table.run_dir.recipe_file.read_text()
    assert "  catalog: null\n" in lines
    table.run_dir.recipe_file.write_text(lines.replace("  catalog: null\n", "  catalog: postgresql://me@127.0.0.1:1/runs\n"))
    done = rft("show", "asked")
    assert (done.code, done.out, len(done.complaints)) == (2, "", 1)
    assert "127.0.0.1:1" in done.err


def test_sql_answers_and_says_what_can_be_asked(rft: Rft, table: Table) -> None:
    trained(table, 1)
    answer = rft("sql", "asked", "select step, reward, reward_parts from experiences order by reward limit 1", "--json")
    assert json.loads(answer.out) == [{"step": 1, "reward": 0.0, "reward_parts": {"exact": 1.0, "format": 0.5}}]
    views = rft("sql", "asked", "--views")
    assert all(name in views.out and text in views.out for name, text in VIEWS.items())
    tables = {found["name"] for found in json.loads(rft("sql", "asked", "show tables", "--json").out)}
    assert {name for name in tables if not name.startswith("_")} == set(VIEWS)
    for arguments in ((), ("select 1", "--views")):
        done = rft("sql", "asked", *arguments)
        assert (done.code, done.complaints) == (
            2,
            ['rft: a question or --views is wanted, one of both; as in: rft sql RUN "select * from ledger"'],
        )
    mistake = rft("sql", "asked", "select nothing from ledger")
    assert (mistake.code, mistake.out) == (2, "")
    assert mistake.err.startswith("rft: ")
    assert "Traceback" not in mistake.err


def test_sql_answers_from_what_is_whole_and_names_the_rest(rft: Rft, table: Table) -> None:
    trained(table)
    path = table.segment_file("step-1")
    path.unlink()
    done = rft("sql", "asked", "select count(*) as n from experiences", "--json")
    assert (done.code, json.loads(done.out)) == (1, [{"n": 4}])
    assert done.complaints == [f"rft: segments/{path.name} is missing, and is left out; `rft fsck asked` says what to do"]
    assert rft("sql", "asked", "select count(*) as n from ledger").code == 0


def test_a_pinned_state_is_asked_until_it_is_let_go(rft: Rft, table: Table) -> None:
    trained(table, 1)
    assert rft("pin", "asked", "before").out == "pinned state 2 as before\n"
    table.append("later", table.lease(1, 2))
    assert rft("pin", "asked", "before").out == "before is pinned already, at state 2\n"
    count = "select count(*) as n from experiences"
    assert json.loads(rft("sql", "asked", count, "--at", "before", "--json").out) == [{"n": 4}]
    assert json.loads(rft("sql", "asked", count, "--json").out) == [{"n": 6}]
    assert rft("unpin", "asked", "before").out == "let before go, which was state 2\n"
    for command in (("unpin", "asked", "before"), ("sql", "asked", count, "--at", "before")):
        done = rft(*command)
        assert (done.code, done.complaints) == (2, ["rft: no state of the table is pinned as before; pinned are: none"])


def test_what_a_state_does_not_hold_is_refused_and_marked(rft: Rft, table: Table) -> None:
    trained(table, 1)
    rft("pin", "asked", "before")
    marked = json.loads(rft("sql", "asked", "--views", "--json").out)
    for view in marked:
        done = rft("sql", "asked", f"select count(*) as n from {view['view']}", "--at", "before")
        assert done.code == (0 if view["--at"] == "yes" else 2), view
        assert "Traceback" not in done.err
    assert [view["view"] for view in marked if view["--at"] == "yes"] == list(STATE_VIEWS)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_sql_names_the_column_that_it_cannot_show(rft: Rft, table: Table, more: tuple[str, ...]) -> None:
    table.lease()
    for value in ("'infinity'::timestamp", "date '10000-01-01'", "[date '0044-01-01 (BC)']", "map {[1]: 2}"):
        done = rft("sql", "asked", f"select 1 as good, {value} as odd", *more)
        assert (done.code, done.out, len(done.complaints)) == (2, "", 1)
        assert done.err.startswith("rft: the column odd has no such form: it is ")
    for value in ("interval 1 day", "union_value(a := 1)", "struct_pack()", "map {1.5: 2}", "map {date '2026-01-02': 2}"):
        assert rft("sql", "asked", f"select {value} as odd", *more).code == 0
    assert json.loads(rft("sql", "asked", "select map {1.5: 2} as odd", "--json").out) == [{"odd": {"1.5": 2}}]


def test_sql_refuses_two_columns_of_one_name(rft: Rft, table: Table) -> None:
    table.lease()
    done = rft("sql", "asked", "select f.lease_id, f.fate, l.lease_id from fates f join leases l using (lease_id)")
    assert (done.code, done.out) == (2, "")
    assert done.complaints == ["rft: the answer has more than one column lease_id; give each a name of its own, as in `select a.x as a_x`"]


def test_a_run_is_asked_over_a_catalog_that_is_closed_afterwards(table: Table) -> None:
    trained(table, 1)

    def num_open() -> int:
        return sum(file.path == str(table.run_dir.catalog_file.absolute()) for file in psutil.Process().open_files())

    table.close()
    with questions(table.run_dir) as asked:
        assert asked.ask("select count(*) as n from ledger").to_pylist() == [{"n": 1}]
        assert num_open() > 0
    assert num_open() == 0


def test_labels_complete_groups(rft: Rft, table: Table, tmp_path: Path) -> None:
    first, second = table.lease(2)
    table.append("a", [first, second], rewards=(None, None))
    ids = experiences(table, "a")
    file = labels(tmp_path / "labels.jsonl", {ids[0]: 1.0, ids[1]: 0.0, ids[2]: 1.0})
    anonymous = rft("label", "asked", "--file", file)
    assert (anonymous.code, anonymous.out) == (2, "")
    assert "name the author in the line or with --author" in anonymous.err
    done = rft("label", "asked", "--file", file, "--author", "ada")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"added 3 labels; 0 were there already; 1 groups are complete now\n  {group_id(first)}\n"
    again = json.loads(rft("label", "asked", "--file", file, "--author", "ada", "--json").out)
    assert again == {"added": 0, "repeated": 3, "completed": [], "unknown": []}
    assert table.catalog.leases.fates() == {"pending": 1, "ready": 1}


def test_labels_of_unknown_experiences_stop_all_or_are_left_out(rft: Rft, table: Table, tmp_path: Path) -> None:
    table.append("a", table.lease(1), rewards=(None, None))
    ids = experiences(table, "a")
    file = labels(tmp_path / "labels.jsonl", {ids[0]: 1.0, "nobody": 0.0, ids[1]: 0.0})
    refused = rft("label", "asked", "--file", file, "--author", "ada")
    assert (refused.code, refused.out) == (2, "")
    assert refused.complaints == [
        "rft: 1 of 3 labels name no experience of this table: nobody (line 2); nothing was applied; --partial applies the rest"
    ]
    assert table.catalog.labels.count() == 0
    done = rft("label", "asked", "--file", file, "--author", "ada", "--partial")
    assert done.code == 0
    assert done.out.startswith("added 2 labels; 0 were there already; 1 groups are complete now\n")
    assert done.complaints == [f"rft: {file} line 2: no experience nobody in this run; it was left out"]


def test_compaction_merges_and_deletes_what_no_restart_needs(rft: Rft, table: Table) -> None:
    trained(table, 4)
    done = rft("compact", "asked", "--now")
    assert (done.code, done.err) == (0, "")
    assert done.out == "merged 8 files into 2, let the rows of 0 go, deleted 0 files\n", "steps from 2 on may be redone"
    for step in (1, 2, 3):
        shutil.rmtree(table.run_dir.checkpoint(step))
    assert json.loads(rft("compact", "asked", "--now", "--json").out)["deleted"] == 8
    assert rft("fsck", "asked").code == 0
    assert json.loads(rft("sql", "asked", "select count(*) as n from attempts", "--json").out) == [{"n": 16}]


def test_compaction_leaves_what_is_damaged_and_says_so(rft: Rft, table: Table) -> None:
    trained(table, 3)
    table.segment_file("step-2").write_bytes(b"torn")
    done = rft("compact", "asked")
    assert done.code == 1
    assert done.out.startswith("merged 5 files into 2")
    (line,) = done.complaints
    assert line.endswith("it was left as it is, `rft fsck asked` says what to do")


def test_fsck_of_a_whole_run_counts_everything(rft: Rft, table: Table) -> None:
    trained(table)
    done = rft("fsck", "asked")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "all is well"
    report = json.loads(rft("fsck", "asked", "--json").out)
    assert (report["left"], report["repaired"]) == ([], [])
    checked = {name: report["checked"][name] for name in ("segments", "overlays", "rows", "groups", "versions", "checkpoints")}
    assert checked == {"segments": 2, "overlays": 2, "rows": 8, "groups": 4, "versions": 2, "checkpoints": 2}


def test_fsck_names_damage_of_every_kind_in_one_line_each(rft: Rft, table: Table) -> None:
    trained(table)
    segment = table.segment_file("step-1")
    segment.write_bytes(segment.read_bytes()[:-1])
    write_whole(table.run_dir.version(1) / "config.json", "x")  # a new file: the old one is the checkpoint's too
    (table.run_dir.checkpoint(2) / "model" / "config.json").unlink()
    done = rft("fsck", "asked", "--check")
    assert done.code == 1
    left = [line.removeprefix("left: ") for line in done.out.splitlines() if line.startswith("left: ")]
    assert [line.partition(" ")[0] for line in left] == [f"segments/{segment.name}", "version", "checkpoint"]
    assert all("; " in line for line in left)
    assert done.out.splitlines()[-1] == "3 problems are left"


def test_fsck_mends_what_killed_processes_left_unless_it_only_checks(rft: Rft, table: Table) -> None:
    trained(table)
    leftover = table.run_dir.checkpoints / ".000003.tmp-01234567"
    leftover.mkdir()
    torn = table.run_dir.root / "segments" / "x.parquet.tmp-01234567"
    torn.write_bytes(b"x")
    assert rft("fsck", "asked").code == 0, "they are young"
    long_ago = time.time() - 700
    for path in (leftover, torn):
        os.utime(path, (long_ago, long_ago))
    checked = rft("fsck", "asked", "--check")
    assert (checked.code, checked.out.count("without --check mends it")) == (1, 2)
    generation = table.take_over()
    assert rft("fsck", "asked").code == 0
    assert leftover.exists(), "a trainer is at work, it may be writing this"
    table.catalog.trainers.release(generation)
    done = rft("fsck", "asked")
    assert (done.code, done.out.count("mended: ")) == (0, 1)
    assert not leftover.exists()


def test_fsck_goes_on_when_a_trainer_that_begins_removes_the_same(rft: Rft, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(table)

    def listed_and_gone(folder: Path) -> list[Path]:
        found = leftovers(folder)
        remove_leftovers(folder)
        return found

    monkeypatch.setattr("flows.table.leftovers", listed_and_gone)
    leftover = table.run_dir.checkpoints / ".000003.tmp-01234567"
    leftover.mkdir()
    os.utime(leftover, (0, 0))
    done = rft("fsck", "asked")
    assert (done.code, done.out.count("mended: ")) == (0, 0)
    assert not leftover.exists()


@pytest.mark.parametrize(
    ("target", "more"), [("out.parquet", ()), ("out.jsonl", ()), ("out", ("--as", "datasets")), ("o", ("--as", "jsonl"))]
)
def test_rows_are_exported(rft: Rft, table: Table, target: str, more: tuple[str, ...], tmp_path: Path) -> None:
    trained(table)
    done = rft("export", "asked", target, *more)
    assert (done.code, done.out) == (0, f"wrote 8 rows to {target}\n")
    assert (tmp_path / target).exists()
    again = rft("export", "asked", target, *more)
    assert (again.code, again.complaints) == (2, [f"rft: {target} is there already; name a new one"])


def test_the_answer_to_a_question_is_exported(rft: Rft, table: Table, tmp_path: Path) -> None:
    trained(table)
    done = rft("export", "asked", "out.jsonl", "--question", "select step, count(*) as n from attempts group by 1 order by 1")
    assert done.out == "wrote 2 rows to out.jsonl\n"
    assert (tmp_path / "out.jsonl").read_text() == '{"step": 1, "n": 4}\n{"step": 2, "n": 4}\n'
    for question in ("select nothing from ledger", ""):
        mistake = rft("export", "asked", "other.jsonl", "--question", question)
        assert (mistake.code, mistake.out) == (2, "")
        assert mistake.err.startswith("rft: ")
    assert not (tmp_path / "other.jsonl").exists()


def test_an_export_of_damaged_rows_fails_whole(rft: Rft, table: Table, tmp_path: Path) -> None:
    trained(table)
    table.segment_file("step-1").unlink()
    done = rft("export", "asked", "out.parquet")
    assert (done.code, done.out, len(done.complaints)) == (1, "", 1)
    assert "is missing, and the answer asks it; `rft fsck` lists" in done.err
    assert not (tmp_path / "out.parquet").exists()


def test_weights_are_exported_as_before(rft: Rft, table: Table, tmp_path: Path) -> None:
    trained(table)
    assert rft("export", "asked", "out").out == "wrote version 2 to out\n"
    assert rft("export", "asked", "one", "--version", "1", "--as", "weights").out == "wrote version 1 to one\n"
    assert (tmp_path / "one" / "config.json").read_text() == "1"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("99", "runs/asked has no files of version 99; it has those of 1, 2"),
        ("0", "runs/asked has no files of version 0; it has those of 1, 2"),
        ("²", "--version ²; a number, `newest` or `best` is right"),
        ("best", "no version of this run was scored; give the recipe `data.evaluation`, or name a version"),
    ],
)
def test_a_version_that_is_not_there_is_the_mistake_of_who_names_it(rft: Rft, table: Table, version: str, said: str) -> None:
    trained(table)
    done = rft("export", "asked", "out", "--version", version)
    assert (done.code, done.out, done.complaints) == (2, "", [f"rft: {said}"])
    assert table.count("readers") == 0


@pytest.mark.parametrize("version", ["1", "newest"])
def test_weights_are_not_collected_while_they_are_exported(
    rft: Rft, table: Table, tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(table)
    copy = shutil.copy2
    store = WeightStore(table.run_dir, table.catalog, table.take_over(), "tiny")

    def after_more_steps(source: Path, target: Path) -> Any:
        for step in (3, 4):
            store.publish(step, step, table.run_dir.checkpoint(2) / "model")
        store.collect(1, set())
        return copy(source, target)

    monkeypatch.setattr(shutil, "copy2", after_more_steps)
    assert rft("export", "asked", "out", "--version", version).code == 0
    assert (tmp_path / "out" / "config.json").read_text() == ("1" if version == "1" else "2")
    assert table.count("readers") == 0
    assert [kept.version for kept in table.catalog.versions.all() if kept.uri] == [1 if version == "1" else 2, 4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("out.jsonl", "--as", "parquet"), "out.jsonl ends in .jsonl, and --as says parquet; give it another name, or leave --as out"),
        (("out.parquet", "--version", "1"), "--version asks for weights, and out.parquet is to hold rows; "),
        (("out", "--question", "select 1"), "--question asks for rows, and out is to be a folder of weights; "),
        (("out", "--as", "csv"), "--as csv; one of weights, parquet, jsonl, datasets is right"),
    ],
)
def test_arguments_of_an_export_that_do_not_go_together_are_one_line(
    rft: Rft, table: Table, arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    before = set(tmp_path.iterdir())
    done = rft("export", "asked", *arguments)
    assert (done.code, done.out, len(done.complaints)) == (2, "", 1)
    assert done.err.startswith(f"rft: {said}")
    assert set(tmp_path.iterdir()) == before


def test_an_empty_catalog_is_not_taken_for_that_of_the_run(rft: Rft, table: Table) -> None:
    for command in (["show", "asked"], ["sql", "asked", "select 1"], ["pin", "asked", "x"], ["compact", "asked"], ["fsck", "asked"]):
        done = rft(*command)
        assert (done.code, done.out) == (2, "")
        assert done.complaints[0].startswith("rft: the catalog runs/asked/catalog.db knows nothing of runs/asked; restore it from a copy")


def test_a_name_that_is_too_long_is_one_line(rft: Rft, table: Table) -> None:
    table.lease()
    done = rft("export", "asked", f"{'a' * 256}.jsonl")
    assert (done.code, len(done.complaints)) == (2, 1)
    assert "File name too long" in done.err


@pytest.mark.parametrize("name", ["", "bad/../name", " ", "-x"])
def test_a_state_has_a_name(rft: Rft, table: Table, name: str) -> None:
    table.lease()
    done = rft("pin", "asked", "--", name)
    assert (done.code, done.complaints) == (
        2,
        [f"rft: {name!r} is no name for a state; letters, digits, and `.`, `_` and `-` after the first one are right"],
    )


def test_an_ending_that_nothing_is_written_as_is_refused(rft: Rft, table: Table) -> None:
    table.lease()
    done = rft("export", "asked", "rows.csv")
    assert (done.code, done.complaints) == (2, ["rft: rows.csv ends in .csv; rows are written as .parquet or .jsonl, weights to a folder"])
