"""Questions in SQL: every documented view answers, and nothing outside the run can be read."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rft_core.buffer import VIEWS, Questions, Shaped
from rft_core.catalog import Claim, Evaluation, StepRow, Version
from rft_core.errors import QueryError, SegmentError
from tests.buffer.table import Table, group_id
from tests.buffer.test_store import DAMAGES


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    """A run that is only read."""
    table = fill(Table(tmp_path_factory.mktemp("filled") / "run"))
    yield table
    table.close()


@pytest.fixture(scope="module")
def questions(filled: Table) -> Questions:
    return Questions(filled.run_dir, filled.catalog, "p")


def fill(table: Table) -> Table:
    """A trained group, a dropped one, a failed one, a lease in flight, and an evaluation."""
    leases = table.lease(4)
    rows = table.append("a", leases[:2])
    table.append("b", leases[2:3], (None, None), error="RewardError: \0 no")
    shaped = [Shaped(row.experience_id, 0.25) for row in rows[:2]]
    shaped += [Shaped(row.experience_id, row.reward, "drop_no_signal", "all rewards equal") for row in rows[2:]]
    table.store.overlay("p", "a", shaped, [], {group_id(leases[1]): "drop_no_signal: all rewards equal"})
    generation = table.catalog.claims.take_over("t")
    table.catalog.claims.make(Claim(1, (group_id(leases[0]),), table.catalog.segments.snapshot()), (), generation)
    row = StepRow(1, "trained", 1, {"trainer/loss": 0.5}, None, 1.0, 0.0)
    table.catalog.claims.commit_step(row, [group_id(leases[0])], {}, generation)
    table.catalog.versions.record(Version(1, 1, "weights/v000001", "a"), generation)
    uri = table.store.write_answers("held_out-v000001", [{"version": 1, "task_id": "t", "reward": 1.0, "exact": True}])
    table.catalog.versions.record_evaluation(Evaluation("held_out", 1, {"evaluation/reward": 1.0}, uri))
    return table


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Questions]:
    table = Table(tmp_path_factory.mktemp("empty") / "run")
    yield Questions(table.run_dir, table.catalog, "p")
    table.close()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_answers_on_an_empty_run(view: str, empty: Questions) -> None:
    assert empty.ask(f"select * from {view}").to_pylist() == []
    assert empty.ask(f"select count(*) as n from {view}").to_pylist() == [{"n": 0}]


@pytest.mark.parametrize(
    ("view", "num_rows"),
    {
        "experiences": 6,
        "groups": 3,
        "leases": 4,
        "fates": 4,
        "steps": 1,
        "claims": 1,
        "evaluations": 1,
        "answers": 1,
        "weights": 1,
    }.items(),
)
def test_every_view_answers_on_a_filled_run(view: str, num_rows: int, questions: Questions) -> None:
    assert len(questions.ask(f"select * from {view}")) == num_rows
    assert questions.ask(f"select count(*) as n from {view}").to_pylist() == [{"n": num_rows}]


def test_every_view_is_listed_and_documented(filled: Table) -> None:
    names = {row["name"] for row in filled.ask("show tables")}
    assert set(VIEWS) <= names


def test_rows_carry_step_fate_and_what_the_pipeline_made_of_them(filled: Table) -> None:
    question = "select step, slot, fate, reward, shaped_reward, dropped_by, drop_reason from experiences order by slot, attempt"
    assert [tuple(row.values()) for row in filled.ask(question)] == [
        (1, 0, "trained", 1.0, 0.25, None, None),
        (1, 0, "trained", 0.0, 0.25, None, None),
        (1, 1, "dropped", 1.0, 1.0, "drop_no_signal", "all rewards equal"),
        (1, 1, "dropped", 0.0, 0.0, "drop_no_signal", "all rewards equal"),
        (1, 2, "failed", None, None, None, None),
        (1, 2, "failed", None, None, None, None),
    ]
    other = filled.ask("select distinct shaped_reward from experiences", pipeline="another")
    assert other == [{"shaped_reward": None}]


def test_a_snapshot_of_questions_people_ask(filled: Table) -> None:
    assert filled.ask("select step, avg(reward) as r from experiences group by 1 order by 1") == [{"step": 1, "r": 0.5}]
    assert filled.ask("select stop_reason, count(*) as n from experiences group by 1") == [{"stop_reason": "eos", "n": 6}]
    assert filled.ask("select reward_parts['format'] as f, info->>'reason' as why, list_sum(logprobs) as l from experiences limit 1") == [
        {"f": 0.5, "why": "equal", "l": pytest.approx(-1.75)}
    ]
    assert filled.ask("select error from experiences where error is not null limit 1") == [{"error": "RewardError: \0 no"}]
    assert filled.ask("select (metrics->>'trainer/loss')::double as loss from steps") == [{"loss": 0.5}]
    fates = filled.ask("select fate, count(*) as n from fates group by 1 order by 1")
    assert [tuple(row.values()) for row in fates] == [("dropped", 1), ("failed", 1), ("in_flight", 1), ("trained", 1)]


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
    ("question", "said"),
    [
        ("select nothing from experiences", "nothing"),
        ("selct 1", "LINE 1: selct 1"),
        ("select * from experience", "experience"),
        ("select 1 +", "LINE 1"),
        ("select reward::date from experiences", "Unimplemented|Conversion|cast"),
        ("select 'a'::int", "Could not convert"),
    ],
)
def test_a_question_that_cannot_be_answered_says_where(question: str, said: str, questions: Questions) -> None:
    with pytest.raises(QueryError, match=said) as raised:
        questions.ask(question)
    assert "the views are experiences, groups, leases" in str(raised.value)


def test_what_has_no_answer_is_an_empty_table(questions: Questions) -> None:
    assert questions.ask("-- nothing").to_pylist() == []


def test_an_empty_question_is_refused(questions: Questions) -> None:
    with pytest.raises(QueryError, match="the question is empty"):
        questions.ask(" ")


def test_the_run_itself_cannot_be_changed(filled: Table) -> None:
    before = filled.ask("select * from fates order by lease_id")
    for question in ("delete from fates", "update steps set status = 'x'", "insert into claims select * from claims"):
        with pytest.raises(QueryError):
            filled.ask(question)
    questions = Questions(filled.run_dir, filled.catalog, "p")
    questions.ask("create table mine as select 1 as a")  # lives and dies with the connection
    assert questions.ask("select * from mine").to_pylist() == [{"a": 1}]
    assert filled.ask("select * from fates order by lease_id") == before


@pytest.mark.parametrize("damage", DAMAGES[1:])
def test_a_damaged_segment_is_named(damage: Callable[[Path], None], table: Table) -> None:
    path = fill(table).segment_file("a")
    damage(path)
    with pytest.raises((SegmentError, QueryError), match=path.name):
        table.ask("select * from experiences")


def test_metrics_are_json_that_duckdb_reads(filled: Table) -> None:
    (row,) = filled.ask("select metrics from steps")
    assert json.loads(row["metrics"]) == {"trainer/loss": 0.5}
