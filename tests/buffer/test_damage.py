"""Damaged files are named precisely, by readers and in answers; everything else stays readable."""

import re

import pytest

from rft_core.buffer import Questions, read_answers
from rft_core.catalog import Evaluation
from rft_core.errors import DataError, SegmentError
from tests.buffer.compacting import FAILS_LATE
from tests.buffer.damages import SAID, Damage, delete, empty, flip_at, flip_reward, rename, replace, truncate
from tests.buffer.table import Table, append_each, group_id

EVERY = "select slot, attempt, tokens, response_text, reward, shaped_reward from experiences order by slot, attempt"

ALL = "select * from experiences order by slot, attempt"


def check(questions: Questions, uri: str, damage: Damage) -> None:
    """That one file alone is named, with what is wrong with it."""
    ((named, problem),) = questions.damaged.items()
    assert named == uri
    assert re.fullmatch(SAID[damage], problem)


@pytest.mark.parametrize("damage", SAID)
def test_a_damaged_segment_is_named_and_the_others_are_read(damage: Damage, table: Table) -> None:
    leases = table.lease(2)
    table.append("a", leases[:1])
    rows = table.append("b", leases[1:])
    path = table.segment_file("a")
    damage(path)
    with pytest.raises(SegmentError, match=rf"^segments/{path.name} of {table.run_dir.root} {SAID[damage]}; .*restore it from a copy"):
        table.store.groups([group_id(lease) for lease in leases])
    assert table.store.groups([group_id(leases[1])])[0].rows == tuple(rows)


@pytest.mark.parametrize("damage", SAID)
def test_a_question_over_a_damaged_segment_is_answered_from_the_others(damage: Damage, table: Table) -> None:
    leases = table.lease(3)
    for key, lease in zip("abc", leases, strict=True):
        table.append(key, [lease])
    before = table.ask(EVERY)
    path = table.segment_file("b")
    damage(path)
    questions = Questions(table.storage, table.catalog, "p")
    assert questions.damaged == {}
    assert questions.ask(EVERY).to_pylist() == [row for row in before if row["slot"] != 1]
    check(questions, f"segments/{path.name}", damage)
    assert questions.ask("select count(*) as n from groups").to_pylist() == [{"n": 3}]
    assert questions.groups_where("true") == {group_id(leases[0]), group_id(leases[2])}


@pytest.mark.parametrize("damage", [empty, delete])
def test_one_that_is_damaged_while_it_is_asked_is_named(damage: Damage, table: Table) -> None:
    append_each(table, "a", [(1, 0)])
    rows = table.append("b", table.lease(1, step=2))
    questions = Questions(table.storage, table.catalog, "p")
    assert len(questions.ask(EVERY)) == 4
    damage(table.segment_file("a"))
    found = questions.ask("select experience_id from experiences order by attempt").to_pylist()
    assert [row["experience_id"] for row in found] == [row.experience_id for row in rows]
    check(questions, f"segments/{table.segment_file('a').name}", damage)


@pytest.mark.parametrize("order", ["", " order by experience_id"])
@pytest.mark.parametrize("damage", [flip_reward, replace, empty, delete])
def test_an_answer_part_by_part_over_a_damaged_segment_is_refused(damage: Damage, order: str, table: Table) -> None:
    leases = table.lease(2)
    for key, lease in zip("ab", leases, strict=True):
        table.append(key, [lease])
    path = table.segment_file("b")
    questions = Questions(table.storage, table.catalog, "p")
    assert len(questions.ask("select * from experiences")) == 4
    damage(path)
    with pytest.raises(SegmentError, match=rf"^segments/{path.name} of .* {SAID[damage]}, and the answer asks it; `rft fsck` lists"):
        list(questions.batches("select * from experiences" + order)[1])


def test_a_file_that_is_damaged_while_an_answer_is_read_is_named(table: Table) -> None:
    append_each(table, "a", [(1, 0)])
    path = table.segment_file("a")
    _, parts = Questions(table.storage, table.catalog, "p").batches(FAILS_LATE)
    assert next(parts).num_rows > 0
    empty(path)
    with pytest.raises(SegmentError, match=f"^segments/{path.name} of .* {SAID[empty]}"):
        list(parts)


def test_every_damaged_file_is_named(table: Table) -> None:
    for number, damage in enumerate((truncate, delete, empty, rename)):
        append_each(table, f"key-{number}", [(1, 0)], step=number + 1)
        damage(table.segment_file(f"key-{number}"))
    append_each(table, "good", [(1, 0)], step=9)
    questions = Questions(table.storage, table.catalog, None)
    assert questions.ask("select distinct step from experiences").to_pylist() == [{"step": 9}]
    assert len(questions.damaged) == 4


def test_no_bit_of_a_file_changes_an_answer_without_a_word(table: Table) -> None:
    leases = table.lease(2)
    table.append("a", leases[:1], turn_rewards=(0.5,), teacher_logprobs=(-1.0,) * 5, error="no")
    table.append("b", leases[1:])
    before, path = table.ask(ALL), table.segment_file("a")
    good = path.read_bytes()
    for position in range(0, len(good), len(good) // 25):
        path.write_bytes(good)
        flip_at(path, position)
        questions = Questions(table.storage, table.catalog, "p")
        found = questions.ask(ALL).to_pylist()
        assert found == (before[2:] if questions.damaged else before), position
        assert set(questions.damaged) <= {f"segments/{path.name}"}


@pytest.mark.parametrize("damage", [found for found in SAID if found is not rename])
def test_a_damaged_overlay_is_named_and_the_facts_are_read(damage: Damage, shaping: Table) -> None:
    leases = append_each(shaping, "a", [(1, 0)]) + append_each(shaping, "b", [(1, 0)], step=2)
    shaping.shape(factor=0.5)
    first = shaping.catalog.segments.overlay_files("p")[0][2].uri
    damage(shaping.run_dir.resolve(first))
    with pytest.raises(SegmentError, match=f"^{first} of .* {SAID[damage]}; "):
        shaping.store.groups([group_id(leases[0])], "p")
    assert [row.reward for row in shaping.store.groups([group_id(leases[0])])[0].rows] == [1.0, 0.0]
    assert len(shaping.store.groups([group_id(leases[1])], "p")[0].shaped) == 2
    questions = Questions(shaping.storage, shaping.catalog, "p")
    found = questions.ask("select step, reward, shaped_reward from experiences order by step, attempt").to_pylist()
    assert [tuple(row.values()) for row in found] == [(1, 1.0, None), (1, 0.0, None), (2, 1.0, 0.5), (2, 0.0, 0.0)]
    check(questions, first, damage)


@pytest.mark.parametrize("damage", [found for found in SAID if found not in (truncate, empty)])
def test_damaged_answers_are_named_and_those_of_other_versions_are_read(damage: Damage, table: Table) -> None:
    files = {}
    for version in (1, 2):
        scored = [{"version": version, "task_id": "t", "response_text": "2", "reward": 1.0, "exact": True}]
        files[version] = table.store.write_answers(f"held_out-v00000{version}", scored)
        table.catalog.versions.record_evaluation(Evaluation("held_out", version, {}, files[version].uri, files[version].sha256))
    damage(table.run_dir.resolve(files[1].uri))
    with pytest.raises(SegmentError, match=f"^{files[1].uri} of .* {SAID[damage]}; "):
        read_answers(table.storage, files[1].uri, files[1].sha256)
    questions = Questions(table.storage, table.catalog, None)
    assert questions.ask("select version, reward, exact from answers").to_pylist() == [{"version": 2, "reward": 1.0, "exact": True}]
    check(questions, files[1].uri, damage)


@pytest.mark.parametrize("damage", [truncate, empty])
def test_answers_whose_hash_is_not_known_and_that_cannot_be_read_are_named(damage: Damage, table: Table) -> None:
    """Those of an older catalog."""
    file = table.store.write_answers("held_out-v000001", [{"version": 1, "task_id": "t"}])
    damage(table.run_dir.resolve(file.uri))
    with pytest.raises(SegmentError, match=rf"^{file.uri} of .* can't be read \(.+\); restore it from a copy"):
        read_answers(table.storage, file.uri)


@pytest.mark.parametrize("damage", [truncate, delete])
def test_labels_of_experiences_in_a_damaged_file_are_not_called_unknown(damage: Damage, table: Table) -> None:
    (lease,) = append_each(table, "a", [(None, None)])
    (row, _) = table.store.groups([group_id(lease)])[0].rows
    path = table.segment_file("a")
    damage(path)
    with pytest.raises(DataError, match=rf"^segments/{path.name} {SAID[damage]}, so it can't be known of which experiences the labels are"):
        table.label({row.experience_id: 1.0})
    assert table.count("labels") == 0


def test_a_folder_in_the_place_of_a_file_is_no_file(table: Table) -> None:
    append_each(table, "a", [(1, 0)])
    path = table.segment_file("a")
    path.unlink()
    path.mkdir()
    questions = Questions(table.storage, table.catalog, None)
    assert len(questions.ask("select * from experiences")) == 0
    check(questions, f"segments/{path.name}", delete)
