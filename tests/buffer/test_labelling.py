"""Labels are laid over rows; what waited for them goes on, and what was shaped before them is shaped again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rft_core.buffer import Questions
from rft_core.buffer.labelling import apply_labels
from rft_core.buffer.labels import read_labels
from rft_core.catalog import Lease
from rft_core.errors import DataError
from rft_core.types import Experience
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_each, group_id, row


def ids(table: Table, lease: Lease) -> list[str]:
    (group,) = table.store.groups([group_id(lease)])
    return [row.experience_id for row in group.rows]


def file_of(folder: Path, said: dict[str, float], author: str = "ada") -> Path:
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps({"experience_id": id_, "value": value, "author": author}) + "\n" for id_, value in said.items()))
    return path


def standing(table: Table) -> list[tuple[str, str | None]]:
    """Status and queue of each group."""
    return [tuple(group.values()) for group in table.look("select status, queue from groups order by step, slot")]


def test_a_group_that_waits_is_completed_shaped_and_trained(shaping: Table, tmp_path: Path) -> None:
    leases = append_each(shaping, "a", [(None, None), (None, None)])
    assert standing(shaping) == [("pending", "labels")] * 2
    first, second = ids(shaping, leases[0])
    path = file_of(tmp_path, {first: 1.0})
    done = apply_labels(shaping.open, read_labels(path))
    assert (done.applied.added, done.applied.repeated, done.applied.completed, done.unknown) == (1, 0, (), ())
    assert standing(shaping) == [("pending", "labels")] * 2
    done = apply_labels(shaping.open, read_labels(file_of(tmp_path, {second: 0.25})))
    assert done.applied.completed == (group_id(leases[0]),)
    assert standing(shaping) == [("ready", "shaping"), ("pending", "labels")]
    assert shaping.shape(factor=2.0) == 1
    generation = shaping.take_over()
    claim = shaping.choose(1, build("oldest_first"), generation)
    assert claim.group_ids == (group_id(leases[0]),)
    (group,) = shaping.store.groups(claim.group_ids, "p", claim.snapshot["sequence"])
    assert [row.reward for row in group.rows] == [None, None]
    assert group.labelled == {first: 1.0, second: 0.25}
    assert [one.shaped_reward for one in group.shaped.values()] == [2.0, 0.5]
    shaping.commit(claim, generation)
    assert shaping.catalog.leases.fates() == {"trained": 1, "pending": 1}


def test_attempts_of_several_turns_need_one_label_each(table: Table) -> None:
    (lease,) = table.lease()
    rows: list[Experience] = [row(lease, attempt, turn, reward=None) for attempt in range(2) for turn in range(3)]
    table.store.append("a", rows, "e", 1)
    assert table.label({rows[1].experience_id: 1.0}).applied.completed == ()
    assert table.label({rows[5].experience_id: 0.0}).applied.completed == (group_id(lease),)


def test_the_same_file_twice_changes_nothing(shaping: Table, tmp_path: Path) -> None:
    (lease,) = append_each(shaping, "a", [(1, 0)])
    shaping.shape()
    lines = read_labels(file_of(tmp_path, {ids(shaping, lease)[0]: 0.5}))
    apply_labels(shaping.open, lines)
    shaping.shape()
    before, at = shaping.look("select * from labels"), shaping.catalog.segments.snapshot()
    done = apply_labels(shaping.open, lines)
    assert (done.applied.added, done.applied.repeated) == (0, 1)
    assert shaping.look("select * from labels") == before
    assert (shaping.catalog.segments.snapshot(), standing(shaping)) == (at, [("ready", "training")])


def test_a_file_that_has_grown_brings_only_what_is_new(table: Table, tmp_path: Path) -> None:
    (lease,) = append_each(table, "a", [(1, 0)])
    first, second = ids(table, lease)
    path = tmp_path / "labels.jsonl"
    line = '{{"experience_id": "{}", "value": {}, "author": "{}"}}\n'
    path.write_text(line.format(first, 1, "ada"))
    apply_labels(table.open, read_labels(path))
    table.label({first: 0.0})  # somebody else corrects her
    path.write_text(path.read_text() + line.format(second, 1, "ada") + line.format(first, 1, "ada"))
    done = apply_labels(table.open, read_labels(path))
    assert (done.applied.added, done.applied.repeated) == (2, 1), "what she said first is not said again, what she said last is"
    assert table.catalog.labels.count() == 4


def test_of_a_file_that_was_edited_only_what_changed_is_new(table: Table, tmp_path: Path) -> None:
    leases = append_each(table, "a", [(1, 0), (1, 0)])
    first, second, third = [id_ for lease in leases for id_ in ids(table, lease)][:3]
    apply_labels(table.open, read_labels(file_of(tmp_path, {first: 1.0, second: 1.0, third: 1.0})))
    apply_labels(table.open, read_labels(file_of(tmp_path, {third: 0.0}, author="bob")))
    done = apply_labels(table.open, read_labels(file_of(tmp_path, {first: 0.5, second: 1.0, third: 1.0})))
    assert (done.applied.added, done.applied.repeated) == (1, 2)
    labelled = [reward for group in table.store.groups([group_id(lease) for lease in leases]) for reward in group.labelled.values()]
    assert labelled == [0.5, 1.0, 0.0], "what bob corrected stays corrected"


@pytest.mark.parametrize(("combine", "expected"), [("newest", [0.5, 0.3, 7.0, 1.0]), ("mean", [0.25, 0.2, 7.0, 1.0])])
def test_what_authors_say_is_all_kept_and_combined_in_one_way(combine: str, expected: list[float], table: Table) -> None:
    table.store.terms = replace(table.store.terms, combine=combine)
    leases = append_each(table, "a", [(1, 0), (0, 1)])
    rows = [id_ for lease in leases for id_ in ids(table, lease)]
    table.label({rows[0]: 1.0, rows[1]: 0.1})
    table.label({rows[0]: 0.0, rows[1]: 0.2}, author="bob")
    table.label({rows[0]: 0.5, rows[2]: 7.0}, author="ada")
    table.label({rows[1]: 0.3}, author="eve")
    groups = table.store.groups([group_id(lease) for lease in leases])
    assert [group.reward_of(attempt) for group in groups for attempt in group.attempts()] == pytest.approx(expected)
    questions = Questions(table.storage, table.catalog, "p", combine)
    found = questions.ask("select final_reward from attempts order by slot, attempt")
    assert found["final_reward"].to_pylist() == pytest.approx(expected)
    found = questions.ask("select coalesce(labelled_reward, reward) as r from experiences order by slot, attempt")
    assert found["r"].to_pylist() == pytest.approx(expected)
    assert table.look(f"select author, value from labels where experience_id = '{rows[0]}' order by sequence") == [
        {"author": "ada", "value": 1.0},
        {"author": "bob", "value": 0.0},
        {"author": "ada", "value": 0.5},
    ]


def test_labels_of_unknown_experiences_are_refused_and_listed(table: Table) -> None:
    (lease,) = append_each(table, "a", [(None, None)])
    said = {ids(table, lease)[0]: 1.0, **{f"no-{number}": 0.0 for number in range(7)}}
    with pytest.raises(DataError) as raised:
        table.label(said)
    assert str(raised.value) == (
        "7 of 8 labels name no experience of this table: no-0 (line 2), no-1 (line 3), no-2 (line 4), no-3 (line 5), no-4 (line 6)"
        " and 2 more; nothing was applied; --partial applies the rest"
    )
    assert table.count("labels") == 0


def test_the_rest_is_applied_if_that_is_asked_for(table: Table, tmp_path: Path) -> None:
    (lease,) = append_each(table, "a", [(None, None)])
    lines = read_labels(file_of(tmp_path, {"nobody": 0.0, **dict.fromkeys(ids(table, lease), 1.0)}))
    done = apply_labels(table.open, lines, partial=True)
    assert ([line.experience_id for line in done.unknown], done.applied.added) == (["nobody"], 2)
    assert done.applied.completed == (group_id(lease),)
    assert apply_labels(table.open, lines[:1], partial=True).applied.added == 0


def test_a_label_with_odd_text_is_stored_and_one_of_an_odd_name_is_unknown(table: Table, tmp_path: Path) -> None:
    (lease,) = append_each(table, "a", [(None, None)])
    path = tmp_path / "labels.jsonl"
    known = ids(table, lease)[0]
    path.write_text(
        f'{{"experience_id": "{known}", "value": 1, "author": "a\\u0000", "note": "\\ud800"}}\n'
        '{"experience_id": "\\ud800", "value": 1, "author": "a"}\n{"experience_id": "\\u0000", "value": 1, "author": "a"}\n'
    )
    assert [line.line for line in apply_labels(table.open, read_labels(path), partial=True).unknown] == [2, 3]
    assert table.look("select author, note from labels") == [{"author": "a\\x00", "note": "\\ud800"}]


def due(table: Table) -> None:
    """The deadline of every group that waits passes."""
    with table.catalog._database.write() as connection:
        connection.exec_driver_sql("update groups set due_at = 1 where due_at is not null")


@pytest.mark.parametrize(
    ("then", "settled", "after"),
    [
        ("drop", (2, 0), [("dropped", None), ("dropped", None), ("ready", "shaping")]),
        ("train_rest", (1, 1), [("ready", "shaping"), ("dropped", None), ("ready", "shaping")]),
    ],
)
def test_a_group_whose_deadline_passes_is_settled_as_the_recipe_says(
    then: str, settled: tuple[int, int], after: list[tuple[str, str | None]], shaping: Table
) -> None:
    shaping.store.terms = replace(shaping.store.terms, awaits_each=True, deadline_s=3600.0, then=then)
    leases = append_each(shaping, "a", [(1.0, None), (None, None), (None, 0.5)])
    shaping.label({ids(shaping, leases[2])[0]: 1.0})
    assert shaping.store.settle() == (0, 0)
    due(shaping)
    assert shaping.store.settle() == settled
    assert shaping.store.settle() == (0, 0)
    assert standing(shaping) == after
    assert {row["reason"] for row in shaping.look("select reason from fates where fate = 'dropped'")} == {"no label before its deadline"}


def test_a_label_after_the_deadline_is_kept_and_changes_no_fate(shaping: Table) -> None:
    shaping.store.terms = replace(shaping.store.terms, deadline_s=3600.0)
    (lease,) = append_each(shaping, "a", [(None, None)])
    due(shaping)
    shaping.store.settle()
    assert shaping.label(dict.fromkeys(ids(shaping, lease), 1.0)).applied.completed == ()
    assert standing(shaping) == [("dropped", None)]
    assert shaping.ask("select distinct labelled_reward as r from experiences") == [{"r": 1.0}]


def test_without_a_deadline_a_group_waits_to_the_end_of_the_run(table: Table) -> None:
    append_each(table, "a", [(None, None)])
    due(table)
    assert table.store.settle() == (0, 0)
    table.catalog.leases.end_run()
    assert table.catalog.leases.fates() == {"unused": 1}


def test_what_was_shaped_before_a_label_is_shaped_again_and_trained_with_it(shaping: Table) -> None:
    leases = append_each(shaping, "a", [(1, 0), (0.5, 0)])
    shaping.shape(factor=2.0)
    assert standing(shaping) == [("ready", "training")] * 2
    shaping.label({ids(shaping, leases[0])[1]: 0.75})
    assert standing(shaping) == [("ready", "shaping"), ("ready", "training")]
    generation = shaping.take_over()
    first = shaping.choose(1, build("oldest_first"), generation)
    assert slots(shaping, first) == [1]
    assert shaping.shape(factor=2.0) == 1
    second = shaping.choose(2, build("oldest_first"), generation)
    assert slots(shaping, second) == [0]
    (group,) = shaping.store.groups(second.group_ids, "p", second.snapshot["sequence"])
    assert [one.shaped_reward for one in group.shaped.values()] == [2.0, 1.5]


def test_a_label_after_the_claim_does_not_change_the_batch(shaping: Table) -> None:
    (lease,) = append_each(shaping, "a", [(1, 0)])
    shaping.shape(factor=2.0)
    generation = shaping.take_over()
    claim = shaping.choose(1, build("oldest_first"), generation)
    at = claim.snapshot["sequence"]
    before = shaping.store.groups(claim.group_ids, "p", at)
    shaping.label(dict.fromkeys(ids(shaping, lease), 9.0))
    shaping.shape(factor=3.0)
    assert shaping.store.groups(claim.group_ids, "p", at) == before
    assert shaping.store.groups(claim.group_ids, "p")[0].labelled == dict.fromkeys(ids(shaping, lease), 9.0)


def priority_of(table: Table) -> list[float]:
    return [row["priority"] for row in table.look("select priority from groups order by slot")]


@pytest.fixture
def spread(table: Table) -> Table:
    """A table whose groups are trained by the spread of their rewards."""
    table.store.terms = replace(table.store.terms, score=build("priority").score)
    return table


def test_a_group_that_got_its_rewards_late_is_scored_by_them(spread: Table) -> None:
    leases = append_each(spread, "a", [(None, None), (1, 0.5), (None, None)])
    spread.label(dict(zip(ids(spread, leases[0]), (1.0, 0.0), strict=True)))
    assert priority_of(spread) == [0.5, 0.25, 0.0]
    spread.label({ids(spread, leases[1])[1]: 0.9})  # one that had rewards, and has another one now
    assert priority_of(spread) == [0.5, pytest.approx(0.05), 0.0]
    assert slots(spread, spread.choose(1, build("priority"), spread.take_over())) == [0, 1]


def test_what_a_person_says_of_priority_is_not_scored_over(spread: Table) -> None:
    (lease,) = append_each(spread, "a", [(None, None)])
    spread.label({ids(spread, lease)[0]: 9.0}, field="priority")
    spread.label(dict(zip(ids(spread, lease), (1.0, 0.0), strict=True)))
    assert priority_of(spread) == [9.0]


def test_a_group_that_was_used_keeps_what_its_use_cost(spread: Table) -> None:
    (lease,) = append_each(spread, "a", [(1, 0)])
    spread.choose(1, build("priority", max_uses=3, decay=0.25), spread.take_over())
    spread.label({ids(spread, lease)[1]: 0.8})
    assert priority_of(spread) == [0.25]


def test_a_labeller_that_was_killed_before_it_scored_does_so_the_next_time(spread: Table, tmp_path: Path) -> None:
    (lease,) = append_each(spread, "a", [(None, None)])
    lines = read_labels(file_of(tmp_path, dict(zip(ids(spread, lease), (1.0, 0.0), strict=True))))
    apply_labels(spread.open, lines)
    spread.catalog.labels.prioritise({group_id(lease): 0.0})  # as it was before
    assert apply_labels(spread.open, lines).applied.added == 0
    assert priority_of(spread) == [0.5]
