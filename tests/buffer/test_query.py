"""Questions in SQL: every documented view answers, and nothing outside the run can be read."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rft_core.buffer import VIEWS, Questions
from rft_core.catalog import Evaluation, StepRow, Version
from rft_core.errors import QueryError
from rft_core.types import Source
from tests.buffer.table import Table, group_id, row

ROWS = {
    "experiences": 8,
    "attempts": 6,
    "groups": 4,
    "leases": 5,
    "fates": 5,
    "ledger": 5,
    "labels": 2,
    "supervised": 2,
    "preferences": 2,
    "steps": 1,
    "claims": 1,
    "evaluations": 1,
    "answers": 1,
    "weights": 1,
    "segments": 3,
    "snapshots": 1,
}
"""How many rows each view has of the filled run."""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A run that is only read."""
    table = fill(Table(tmp_path_factory.mktemp("filled") / "run", pipeline="p"))
    yield table
    table.close()


@pytest.fixture(scope="module")
def questions(filled: Table) -> Questions:
    return Questions(filled.storage, filled.catalog, "p")


def fill(table: Table) -> Table:
    """A trained group, a dropped one, one that failed, one of an expert, a lease in flight, labels and an evaluation."""
    leases = table.lease(5)
    rows = table.append("a", leases[:2])
    table.append("b", leases[2:3], (None, None), error="RewardError: \0 no")
    table.append("c", leases[3:4], source=Source.EXPERT, response_text="4")
    table.label({rows[0].experience_id: 0.5, rows[2].experience_id: 1.0})
    table.shape(factor=0.5, drop={group_id(leases[1])})
    generation = table.take_over()
    claim = table.claim(1, generation, count=1)
    row = StepRow(1, "trained", 1, {"trainer/loss": 0.5}, None, 1.0, 0.0)
    table.catalog.claims.commit_step(row, claim.group_ids, {}, generation)
    table.catalog.versions.record(Version(1, 1, "weights/v000001", "a"), generation)
    file = table.store.write_answers("held_out-v000001", [{"version": 1, "task_id": "t", "reward": 1.0, "exact": True}])
    table.catalog.versions.record_evaluation(Evaluation("held_out", 1, {"evaluation/reward": 1.0}, file.uri, file.sha256))
    table.catalog.history.pin("now")
    return table


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Questions]:
    table = Table(tmp_path_factory.mktemp("empty") / "run")
    yield Questions(table.storage, table.catalog, "p")
    table.close()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_answers_on_an_empty_run(view: str, nothing: Questions) -> None:
    assert nothing.ask(f"select * from {view}").to_pylist() == []
    assert nothing.ask(f"select count(*) as n from {view}").to_pylist() == [{"n": 0}]


def test_a_condition_and_experiences_on_an_empty_run(nothing: Questions) -> None:
    assert nothing.groups_where("reward > 0") == set()
    assert nothing.groups_of(["a", "b"]) == {}
    assert nothing.groups_of([]) == {}


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_answers_on_a_filled_run(view: str, questions: Questions, filled: Table) -> None:
    assert len(questions.ask(f"select * from {view}")) == ROWS[view]
    # Each for itself too: a view brings what it needs, whatever was asked before.
    assert filled.ask(f"select count(*) as n from {view}") == [{"n": ROWS[view]}]


def test_every_view_is_listed_and_documented(filled: Table) -> None:
    names = {row["name"] for row in filled.ask("show tables")}
    assert set(VIEWS) <= names


def test_rows_carry_step_fate_labels_and_what_the_pipeline_made_of_them(filled: Table) -> None:
    question = "select slot, fate, reward, labelled_reward, shaped_reward, dropped_by, drop_reason from experiences order by slot, attempt"
    assert [tuple(row.values()) for row in filled.ask(question)] == [
        (0, "trained", 1.0, 0.5, 0.25, None, None),
        (0, "trained", 0.0, None, 0.0, None, None),
        (1, "dropped", 1.0, 1.0, 0.5, "op", "why"),
        (1, "dropped", 0.0, None, 0.0, "op", "why"),
        (2, "failed", None, None, None, None, None),
        (2, "failed", None, None, None, None, None),
        (3, "ready", 1.0, None, 0.5, None, None),
        (3, "ready", 0.0, None, 0.0, None, None),
    ]
    assert filled.ask("select distinct shaped_reward from experiences", pipeline="another") == [{"shaped_reward": None}]


def test_an_attempt_is_its_last_row_with_the_reward_that_counts(filled: Table) -> None:
    found = filled.ask("select slot, attempt, final_reward from attempts order by slot, attempt")
    assert [tuple(row.values()) for row in found] == [(0, 0, 0.25), (0, 1, 0.0), (1, 0, 0.5), (1, 1, 0.0), (3, 0, 0.5), (3, 1, 0.0)]
    found = filled.ask("select slot, attempt, final_reward from attempts order by slot, attempt", pipeline="another")
    assert [tuple(row.values()) for row in found][:4] == [(0, 0, 0.5), (0, 1, 0.0), (1, 0, 1.0), (1, 1, 0.0)]


def test_a_turn_that_failed_ends_its_attempt_wherever_its_label_is(table: Table) -> None:
    (lease,) = table.lease()
    rows = [row(lease, attempt, turn, reward=0.25) for attempt in range(3) for turn in range(3)]
    rows[8] = row(lease, 2, 2, reward=None, error="DeadlineError: late")
    table.store.append("a", rows, "e", 1)
    table.label({rows[0].experience_id: 0.5, rows[1].experience_id: 0.75})
    found = table.ask("select attempt, turn_index, reward, labelled_reward, final_reward from attempts order by attempt")
    assert [tuple(row.values()) for row in found] == [(0, 2, 0.25, 0.75, 0.75), (1, 2, 0.25, None, 0.25)]
    (group,) = table.store.groups([group_id(lease)])
    assert [group.reward_of(attempt) for attempt in group.attempts()] == [0.75, 0.25, None]


def test_the_best_is_preferred_to_the_worst(table: Table) -> None:
    leases = table.lease(3)
    rewards = {0: (0.25, 1.0, 0.5), 1: (0.5, 0.5, 0.5), 2: (None, 0.5, 0.75)}
    rows = [
        row(lease, attempt, reward=reward, response_text=str(reward))
        for lease in leases
        for attempt, reward in enumerate(rewards[lease.slot])
    ]
    table.store.append("a", rows, "e", 1)
    found = table.ask("select task_id, prompt_text, chosen, rejected, margin, chosen_tokens, chosen_id from preferences order by task_id")
    prompt, tokens = rows[0].prompt_text, list(rows[0].tokens)
    assert [tuple(row.values()) for row in found] == [
        ("task-0", prompt, "1.0", "0.25", 0.75, tokens, rows[1].experience_id),
        ("task-2", prompt, "0.75", "0.5", 0.25, tokens, rows[8].experience_id),
    ]
    table.label({rows[0].experience_id: 2.0})
    assert table.ask("select chosen, rejected from preferences order by task_id limit 1") == [{"chosen": "0.25", "rejected": "0.5"}]


def test_questions_people_ask(filled: Table) -> None:
    assert filled.ask("select step, avg(reward) as r from experiences group by 1 order by 1") == [{"step": 1, "r": 0.5}]
    assert filled.ask("select stop_reason, count(*) as n from experiences group by 1") == [{"stop_reason": "eos", "n": 8}]
    assert filled.ask("select reward_parts['format'] as f, info->>'reason' as why, list_sum(logprobs) as l from experiences limit 1") == [
        {"f": 0.5, "why": "equal", "l": pytest.approx(-1.75)}
    ]
    assert filled.ask("select error from experiences where error is not null limit 1") == [{"error": "RewardError: \0 no"}]
    assert filled.ask("select (metrics->>'trainer/loss')::double as loss from steps") == [{"loss": 0.5}]
    ledger = {row["fate"]: row["leases"] for row in filled.ask("select * from ledger")}
    assert ledger == dict.fromkeys(("dropped", "failed", "in_flight", "ready", "trained"), 1)


OUTSIDE = (
    "select * from read_csv('{file}')",
    "select * from '{file}'",
    "select * from read_text('{file}')",
    "select * from read_blob('{file}')",
    "select * from read_json('{file}')",
    "select * from read_parquet('{parquet}')",
    "select * from glob('{folder}/*')",
    "copy (select 1) to '{folder}/out.csv'",
    "copy steps from '{file}'",
    "export database '{folder}/out'",
    "import database '{folder}'",
    "attach '{folder}/other.db' as other",
    "attach '{catalog}' as other (type sqlite)",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "reset enable_external_access",
    "set python_enable_replacements = true",
    "set allowed_directories = ['/']",
    "select * from read_csv('https://example.org/x.csv')",
)


@pytest.mark.parametrize("question", OUTSIDE)
def test_nothing_outside_the_run_can_be_read_or_written(question: str, filled: Table, questions: Questions, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.csv").write_text("a,b\n1,2\n")
    places = {
        "file": outside / "secret.csv",
        "folder": outside,
        "parquet": filled.segment_file("a"),
        "catalog": filled.run_dir.catalog_file,
    }
    with pytest.raises(QueryError):
        questions.ask(question.format(**places))
    assert {path.name for path in outside.iterdir()} == {"secret.csv"}


def test_python_variables_are_no_tables(filled: Table) -> None:
    secret = filled.catalog.relation("leases")
    assert secret
    with pytest.raises(QueryError, match="secret"):
        filled.ask("select * from secret")


@pytest.mark.parametrize(
    ("question", "said", "line"),
    [
        ("select nothing from experiences", "nothing", "LINE 1: select nothing from experiences"),
        ("selct 1", "selct", "LINE 1: selct 1"),
        ("select *\nfrom experience", "experience", "LINE 2: from experience"),
        ("select 1 +", "syntax error", "LINE 1"),
        ("select reward::date from experiences", "Unimplemented|Conversion|cast", ""),
        ("select 'a'::int", "Could not convert", "LINE 1: select 'a'::int"),
    ],
)
def test_a_question_that_cannot_be_answered_says_where(question: str, said: str, line: str, questions: Questions) -> None:
    with pytest.raises(QueryError, match=said) as raised:
        questions.ask(question)
    assert line in str(raised.value)
    assert "the views are experiences, attempts, groups, leases" in str(raised.value)


def test_a_mistake_in_a_question_makes_nobody_read_the_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append("a", table.lease())
    questions = Questions(table.storage, table.catalog, None)
    questions.ask("select count(*) from experiences")
    read: list[str] = []
    monkeypatch.setattr(type(table.storage), "_read", lambda self, uri: read.append(uri))
    for question in (
        "select nothing from experiences",
        "selct 1",
        "select response_text::int from experiences where reward > 7 or 'a'::int = 1",
    ):
        with pytest.raises(QueryError):
            questions.ask(question)
    assert read == []


def test_what_has_no_answer_is_an_empty_table(questions: Questions) -> None:
    assert questions.ask("-- nothing").to_pylist() == []


@pytest.mark.parametrize("question", ["", " ", "\n"])
def test_an_empty_question_is_refused(question: str, questions: Questions) -> None:
    with pytest.raises(QueryError, match="the question is empty"):
        questions.ask(question)


def test_the_run_itself_cannot_be_changed(filled: Table) -> None:
    before = filled.ask("select * from fates order by lease_id")
    for question in ("delete from fates", "update steps set status = 'x'", "insert into claims select * from claims", "drop table groups"):
        with pytest.raises(QueryError):
            filled.ask(question)
    questions = Questions(filled.storage, filled.catalog, "p")
    questions.ask("create table mine as select 1 as a")  # lives and dies with the connection
    assert questions.ask("select * from mine").to_pylist() == [{"a": 1}]
    assert filled.ask("select * from fates order by lease_id") == before


def test_an_answer_comes_part_by_part(filled: Table) -> None:
    questions = Questions(filled.storage, filled.catalog, "p")
    columns, parts = questions.batches("select slot, attempt, tokens from experiences order by slot, attempt", rows=1)
    assert columns.names == ["slot", "attempt", "tokens"]
    whole: list[dict[str, Any]] = [found for part in parts for found in part.to_pylist()]
    assert whole == questions.ask("select slot, attempt, tokens from experiences order by slot, attempt").to_pylist()
    with pytest.raises(QueryError, match="LINE 1: select nowhere"):
        questions.batches("select nowhere from experiences")
    with pytest.raises(QueryError, match="the question has no answer"):
        questions.batches(";")


def test_two_columns_of_one_name_are_refused_not_shown_as_one(questions: Questions) -> None:
    question = "select e.group_id, g.status, g.group_id from experiences e join groups g using (group_id)"
    for asked in (questions.ask, questions.batches):
        with pytest.raises(QueryError, match="^the answer has more than one column group_id; give each a name of its own"):
            asked(question)


def test_experiences_lead_to_their_groups(filled: Table, questions: Questions) -> None:
    found = {row["experience_id"]: row["group_id"] for row in filled.ask("select experience_id, group_id from experiences")}
    assert questions.groups_of([*found, "unknown"]) == found


def test_metrics_are_json_that_duckdb_reads(filled: Table) -> None:
    (row,) = filled.ask("select metrics from steps")
    assert json.loads(row["metrics"]) == {"trainer/loss": 0.5}


def test_a_question_that_takes_long_draws_nothing_on_stdout() -> None:
    """DuckDB takes `python -c`, as which multiprocessing starts its processes, for a person at work, and draws a bar there."""
    code = "import duckdb; from rft_core.buffer.query import _connect; asked = \"select current_setting('enable_progress_bar')\""
    code += "; print([found.execute(asked).fetchone()[0] for found in (duckdb.connect(), _connect())])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[True, False]\n"
