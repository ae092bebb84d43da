"""The commands that work on a run's table, and `rft show`: run in process, over small tables, without a flow."""

import json
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flows.cli import main
from flows.show import Counts, waits_for
from rft_core.buffer import VIEWS, Shaped
from rft_core.catalog import StepRow
from rft_core.config import dump, parse
from rft_core.disk import write_whole
from rft_core.operators.apply import pipeline_version
from rft_core.processes import this_process
from rft_core.trainer import manifest
from rft_core.weights import WeightStore
from tests.buffer.table import Table, group_id, row
from tests.tiny_files import recipe


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        return self.err.splitlines()


Rft = Callable[..., Done]


@pytest.fixture
def rft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rft:
    """The `rft` command, in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"):
        monkeypatch.setenv(variable, "")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["rft", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        assert code is None or isinstance(code, int)
        return Done(code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def table(tmp_path: Path, tiny_shape: Path) -> Iterator[Table]:
    """The table of a run that was started once, as `runs/asked` of the working folder."""
    config = parse(recipe(tmp_path, tiny_shape, name="asked", runs_dir="runs", steps=6))
    opened = Table(tmp_path / "runs" / "asked", pipeline=pipeline_version(config.operators), writer="explorer-0")
    write_whole(opened.run_dir.recipe_file, dump(config))
    yield opened
    opened.close()


def shape(table: Table, key: str, leases: list) -> None:  # type: ignore[type-arg]
    rows = {group_id(lease): [Shaped(row(lease, attempt).experience_id, 1.0) for attempt in range(2)] for lease in leases}
    table.store.overlay(key, rows, [], {})


def trained(table: Table, steps: int = 2) -> None:
    """Some steps, of two groups each, with their weights and checkpoints; the trainer has ended."""
    generation = table.catalog.trainers.take_over(this_process())
    for step in range(1, steps + 1):
        leases = table.lease(2, step)
        table.append(f"step-{step}", leases)
        shape(table, f"step-{step}", leases)
        claim = table.claim(step, generation, 2)
        folder = table.run_dir.checkpoint(step)
        write_whole(folder / "model" / "config.json", f"{step}")
        files = {"model/config.json": {"bytes": 1, "sha256": manifest.file_sha256(folder / "model" / "config.json")}}
        write_whole(folder / "manifest.json", json.dumps({"format": 1, "step": step, "files": files}))
        WeightStore(table.run_dir, table.catalog, generation, "tiny").publish(step, step, folder / "model")
        commit = StepRow(step, "trained", step, {"trainer/loss": 0.5}, None, 1.0, 0.0)
        table.catalog.claims.commit_step(commit, claim.group_ids, {}, generation)
    table.catalog.trainers.release(generation)


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


def test_show_says_how_a_run_stands(rft: Rft, table: Table) -> None:
    trained(table)
    leases = table.lease(3, 3)
    table.append("step-3", leases[:1])
    table.append("unrewarded", leases[1:2], rewards=(None, None))
    table.catalog.versions.acknowledge("explorer-0", 2)
    table.catalog.history.pin("before")
    done = rft("show", "asked")
    assert (done.code, done.err) == (0, "")
    for line in (
        "steps: 2 of 6",
        "waits for: the trainer is not running; step 3 is the next",
        "trainer: none",
        "segments: 4",
        "rows: 12",
        "pinned: before",
        "leases: 7",
    ):
        assert line in done.out.splitlines(), done.out
    shown = json.loads(rft("show", "asked", "--json").out)
    assert shown["fates"] == {"trained": 4, "ready": 1, "pending": 1, "in_flight": 1}
    assert shown["groups_that_wait_for"] == {"labels": 1, "shaping": 1, "training": 0}
    assert shown["last_batch"] == {"step": 2, "groups": 2, "staleness": 1}
    assert shown["explorers"] == [{"explorer": "explorer", "open leases": 1, "first expires in": "60 s"}]
    assert shown["readers"] == [{"reader": "explorer-0", "uses version": 2, "seen": "0 s ago"}]
    assert shown["versions"] == [{"version": number, "files": f"weights/v00000{number}"} for number in (1, 2)]
    assert shown["damaged"] == []
    assert shown["bytes"] == sum(path.stat().st_size for path in (table.run_dir.root / "segments").iterdir())


def test_show_says_what_came_to_nothing_and_why(rft: Rft, table: Table) -> None:
    leases = table.lease(3)
    table.append("a", leases)
    dropped = {group_id(lease): "drop_no_signal: all rewards are equal" for lease in leases[:2]}
    shaped = {group_id(lease): [Shaped(row(lease).experience_id, 1.0)] for lease in leases}
    table.store.overlay("a", shaped, [], dropped)
    shown = json.loads(rft("show", "asked", "--json").out)
    assert shown["came_to_nothing"] == [{"fate": "dropped", "reason": "drop_no_signal: all rewards are equal", "leases": 2}]


def test_show_names_the_trainer_and_what_it_waits_for(rft: Rft, table: Table) -> None:
    table.take_over("process 1 on mill")
    table.append("a", table.lease(2))
    shown = json.loads(rft("show", "asked", "--json").out)
    assert shown["trainer"] == "process 1 on mill, heard of 0 s ago"
    assert shown["waits_for"] == "4 more groups: 0 ready of 4, 2 groups to shape"


def test_show_notices_damage_without_reading(rft: Rft, table: Table) -> None:
    trained(table)
    table.segment_file("step-1").unlink()
    table.segment_file("step-2").write_bytes(b"torn")
    shutil.rmtree(table.run_dir.version(1))
    done = rft("show", "asked")
    assert done.code == 1
    assert done.complaints == ["rft: 3 files are missing or damaged; `rft fsck asked` says what to do"]
    damaged = json.loads(rft("show", "asked", "--json").out)["damaged"]
    assert [one["problem"].partition(",")[0] for one in damaged] == ["is missing", "has 4 bytes", "is missing"]


WAITING = Counts(done=3, steps=6, wanted=8, trained_by="process 1")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (replace(WAITING, done=6), "nothing, the run is completed"),
        (replace(WAITING, ended=True), "nothing, the run is completed"),
        (replace(WAITING, trained_by=None, ready=8), "the trainer is not running; step 4 is the next"),
        (replace(WAITING, claimed=True), "nothing: step 4 has its batch"),
        (replace(WAITING, ready=9), "nothing: 9 ready of 8"),
        (replace(WAITING, ready=3), "5 more groups: 3 ready of 8"),
        (replace(WAITING, ready=3, in_flight=4, shaping=1), "5 more groups: 3 ready of 8, 4 leases in flight, 1 groups to shape"),
        (replace(WAITING, ready=3, labels=5), "labels of 5 groups: 3 ready of 8"),
        (replace(WAITING, ready=3, labels=5, due_in_s=240.0), "labels of 5 groups, the next due in 4 min: 3 ready of 8"),
        (replace(WAITING, labels=5, due_in_s=-3.0), "labels of 5 groups, the next due in 0 s: 0 ready of 8"),
        (replace(WAITING, labels=5, in_flight=1), "8 more groups: 0 ready of 8, 1 leases in flight, labels of 5 groups"),
    ],
)
def test_what_the_trainer_waits_for_is_one_line(counts: Counts, said: str) -> None:
    assert waits_for(counts) == said


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
    table.storage.write("segments/x.parquet", b"x")
    assert rft("fsck", "asked").code == 0, "they are young"
    long_ago = time.time() - 700
    for path in (leftover, table.run_dir.root / "segments" / "x.parquet"):
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
    assert "is missing, so nothing was written" in done.err
    assert not (tmp_path / "out.parquet").exists()


def test_weights_are_exported_as_before(rft: Rft, table: Table, tmp_path: Path) -> None:
    trained(table)
    assert rft("export", "asked", "out").out == "wrote version 2 to out\n"
    assert rft("export", "asked", "one", "--version", "1", "--as", "weights").out == "wrote version 1 to one\n"
    assert (tmp_path / "one" / "config.json").read_text() == "1"


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
