"""Compaction: fewer files that say the same, wherever it is killed and whoever reads meanwhile."""

import random

import pytest

from rft_core.buffer import ExperienceStore, Questions, Shaped
from rft_core.buffer.compaction import MOST_FILES, _batches, _Limits
from rft_core.catalog import Lease, Part, StoredFile
from rft_core.errors import QueryError, SegmentError
from tests.buffer.compacting import FAILS_LATE, Racing, check_files, everything, fill, killed, squeeze
from tests.buffer.damages import SAID, Damage, delete, empty, flip_reward, truncate
from tests.buffer.table import Table, append_each, group_id


def test_a_merged_table_answers_the_same_questions(shaping: Table) -> None:
    claims = fill(shaping)
    before = everything(shaping)
    read = [shaping.store.groups(claim.group_ids, "p", claim.snapshot["sequence"]) for claim in claims]
    now = [shaping.store.groups(claim.group_ids, "p") for claim in claims]
    done = squeeze(shaping, redo_from=1)
    assert (done.merged, done.made, done.let_go, done.deleted, done.damaged) == (3 + 6, 2, 0, 0, [])
    assert everything(shaping) == before
    assert [shaping.store.groups(claim.group_ids, "p", claim.snapshot["sequence"]) for claim in claims] == read
    assert (done := squeeze(shaping, redo_from=4)).deleted == 9
    assert (done.merged, done.made) == (0, 0)
    assert len(shaping.files("segments")) == len(shaping.files("overlays")) == 1
    assert everything(shaping) == before
    assert [shaping.store.groups(claim.group_ids, "p") for claim in claims] == now
    check_files(shaping)


def test_a_second_compaction_has_nothing_to_do(shaping: Table) -> None:
    fill(shaping, steps=2)
    squeeze(shaping)
    files = shaping.files("segments") | shaping.files("overlays")
    done = squeeze(shaping)
    assert (done.merged, done.made, done.let_go, done.deleted, done.damaged) == (0, 0, 0, 0, [])
    assert shaping.files("segments") | shaping.files("overlays") == files


def test_an_empty_table_and_a_single_file_stay_as_they_are(table: Table) -> None:
    assert squeeze(table).made == 0
    append_each(table, "a", [(1, 0)])
    table.claim(1, table.take_over())
    assert squeeze(table).made == 0


def test_what_is_still_waited_for_stays_where_it_is(shaping: Table) -> None:
    """Groups that wait for labels, for shaping and for training, each among segments that are done."""
    fill(shaping, steps=2)
    append_each(shaping, "to-label", [(None, None), (None, None)], step=10)
    append_each(shaping, "to-train", [(1, 0), (1, 0)], step=11)
    shaping.shape()
    append_each(shaping, "to-shape", [(1, 0), (1, 0)], step=12)
    before = everything(shaping)
    assert squeeze(shaping).merged == 2 + 5  # overlays are not waited for: each group has all of them
    live = {key for key, _ in shaping.catalog.segments.files()}
    assert {"to-label", "to-shape", "to-train"} < live
    assert len(live) == 4
    assert everything(shaping) == before
    assert set(shaping.claim(3, 1).group_ids) == {row["group_id"] for row in before["groups"] if row["step"] == 11}


def test_late_and_failed_rows_are_merged_too(table: Table) -> None:
    leases = table.lease(1)
    table.catalog.leases.take_back("explorer", "it is dead")
    table.append("late", leases)
    table.append("failed", table.lease(0), (None, None), error="RewardError: no")
    before = everything(table)
    assert squeeze(table).made == 1
    assert everything(table) == before
    assert {row["fate"] for row in before["fates"]} == {"expired", "failed"}


def test_the_key_of_a_merged_append_is_still_known(table: Table) -> None:
    generation = table.take_over()
    leases = {}
    for key in "ab":
        leases[key] = append_each(table, key, [(1, 0)], step=ord(key))
    table.claim(1, generation)
    assert squeeze(table).deleted == 2
    table.append("a", leases["a"], (0.5, 0.5))
    assert table.ask("select distinct reward from experiences order by 1") == [{"reward": 0.0}, {"reward": 1.0}]


def test_files_are_merged_up_to_a_size_and_big_ones_stay(table: Table) -> None:
    fill(table, steps=6)
    size = max(file.bytes for _, file in table.catalog.segments.files())
    append_each(table, "big", [(1, 0)] * 60, step=50, response_text=random.Random(0).randbytes(size).hex())
    table.claim(50, 1)
    assert squeeze(table, target_bytes=2 * size).made == 2
    files = dict(table.catalog.segments.files())
    assert len(files) == 3
    assert "big" in files
    check_files(table)


def test_no_merge_reads_more_files_than_it_should() -> None:
    parts = [Part(str(number), StoredFile(str(number), 1, 10, ""), 0.0) for number in range(2 * MOST_FILES + 1)]
    assert [len(batch) for batch in _batches(parts, _Limits(10**9))] == [MOST_FILES, MOST_FILES]


def overlay(table: Table, segment: str, reason: str, *leases: Lease) -> str:
    """Lay another overlay over some groups; returns its key."""
    groups = table.store.groups([group_id(lease) for lease in leases])
    said = {group.group_id: [Shaped(row.experience_id, row.reward, "op", reason) for row in group.rows] for group in groups}
    table.label({group.rows[0].experience_id: 1.0 for group in groups}, key=reason[:8])  # so that it is another overlay
    table.store.overlay(segment, said, [], {})
    return table.catalog.segments.overlay_files("p")[-1][0]


def reasons(table: Table) -> list[str]:
    return [row["drop_reason"][:8] for row in table.ask("select drop_reason from experiences where attempt = 0 order by step, slot")]


def test_the_newest_of_what_overlays_say_is_what_the_merged_one_says(shaping: Table) -> None:
    leases = append_each(shaping, "a", [(1, 0), (1, 0)])
    for reason, of in (("first", leases), ("second", leases[:1]), ("third", leases[1:]), ("fourth", leases[:1])):
        overlay(shaping, "a", reason, *of)
    assert reasons(shaping) == ["fourth", "third"]
    assert squeeze(shaping).merged == 4
    assert reasons(shaping) == ["fourth", "third"]
    found = shaping.store.groups([group_id(lease) for lease in leases], "p")
    assert [one.drop_reason for group in found for one in group.shaped.values()] == ["fourth"] * 2 + ["third"] * 2


def test_what_a_newer_overlay_says_is_not_hidden_by_a_merge_of_older_ones(shaping: Table) -> None:
    """The newest overlay of a group is too big to be merged: older ones of the same group must not take its place."""
    leases = append_each(shaping, "a", [(1, 0), (1, 0)]) + append_each(shaping, "b", [(1, 0)], step=2)
    overlay(shaping, "a", "older", *leases[:2])
    overlay(shaping, "b", "other", leases[2])
    overlay(shaping, "b", "another", leases[2])
    overlay(shaping, "a", "newest " + random.Random(0).randbytes(20_000).hex(), leases[0])
    small, big = (sorted(file.bytes for *_, file in shaping.catalog.segments.overlay_files("p"))[index] for index in (-2, -1))
    assert big > 4 * small
    before = everything(shaping)
    done = squeeze(shaping, target_bytes=4 * small)
    assert (done.merged, done.made) == (2, 1)
    assert everything(shaping) == before
    found = shaping.store.groups([group_id(lease) for lease in leases], "p")
    assert [one.drop_reason[:6] for group in found for one in group.shaped.values()] == ["newest"] * 2 + ["older"] * 2 + ["anothe"] * 2


@pytest.mark.parametrize("damage", SAID)
def test_a_damaged_segment_is_left_and_named_and_the_others_are_merged(damage: Damage, table: Table) -> None:
    claims = fill(table)
    path = table.segment_file("step-2")
    damage(path)
    done = squeeze(table)
    assert (done.merged, done.made) == (2, 1)
    assert len(done.damaged) == 1
    assert done.damaged[0].startswith(f"segments/{path.name} of {table.run_dir.root} ")
    assert path.exists() or damage is delete
    assert len(table.store.groups(claims[2].group_ids)) == 2
    with pytest.raises(SegmentError, match=path.name):
        table.store.groups(claims[1].group_ids)


@pytest.mark.parametrize("damage", [flip_reward, truncate, empty, delete])
def test_a_damaged_overlay_is_left_and_what_it_says_is_not_replaced_by_older_ones(damage: Damage, shaping: Table) -> None:
    leases = append_each(shaping, "a", [(1, 0), (1, 0)])
    for reason, of in (("first", leases), ("second", leases[:1]), ("third", leases[1:]), ("fourth", leases[1:])):
        overlay(shaping, "a", reason, *of)
    (_, _, second) = shaping.catalog.segments.overlay_files("p")[1]
    damage(shaping.run_dir.resolve(second.uri))
    done = squeeze(shaping)
    assert (done.merged, done.made) == (2, 1)
    assert [one.drop_reason for one in shaping.store.groups([group_id(leases[1])], "p")[0].shaped.values()] == ["fourth"] * 2
    with pytest.raises(SegmentError, match=second.uri):
        shaping.store.groups([group_id(leases[0])], "p")


@pytest.mark.parametrize(
    "point",
    [
        *(f"compact.renamed:{time}" for time in (1, 2)),
        *(f"compact.committed:{time}" for time in (1, 2)),
        "collect.deleted:4",
    ],
)
def test_killed_at_any_point_it_goes_on_where_it_was(point: str, shaping: Table) -> None:
    fill(shaping)
    append_each(shaping, "waits", [(1, 0)], step=9)
    before = everything(shaping)
    assert killed(shaping.run_dir.root, point) == -9
    assert everything(shaping) == before
    squeeze(shaping)
    assert everything(shaping) == before
    check_files(shaping)
    assert (len(shaping.files("segments")), len(shaping.files("overlays"))) == (2, 1)


@pytest.mark.parametrize("pipeline", [None, "p"])
def test_a_reader_finds_what_was_merged_and_deleted_after_it_had_looked(pipeline: str | None, shaping: Table) -> None:
    claims = fill(shaping)
    ids = [group_id for claim in claims for group_id in claim.group_ids]
    before = shaping.store.groups(ids, pipeline)
    racing = ExperienceStore(Racing(shaping, "read"), shaping.catalog, shaping.store.terms)
    assert racing.groups(ids, pipeline) == before


def test_a_reader_finds_overlays_that_were_merged_and_deleted_after_it_had_looked(shaping: Table) -> None:
    claims = fill(shaping)
    before = shaping.store.groups(claims[0].group_ids, "p")
    found = {group.group_id: group.rows for group in before}
    racing = ExperienceStore(Racing(shaping, "read"), shaping.catalog, shaping.store.terms)
    assert racing._shaped("p", found, None) == {name: said for group in before for name, said in group.shaped.items()}


def test_a_question_finds_what_was_merged_and_deleted_since_the_last_one(shaping: Table) -> None:
    fill(shaping)
    questions = Questions(shaping.storage, shaping.catalog, "p")
    ask = "select * exclude (created_at) from experiences order by experience_id"
    before = questions.ask(ask).to_pylist()
    assert squeeze(shaping).deleted == 9
    assert questions.ask(ask).to_pylist() == before
    assert questions.damaged == {}


@pytest.mark.parametrize("order", ["", " order by all"])
def test_an_answer_part_by_part_finds_what_was_merged_and_deleted_since(order: str, shaping: Table) -> None:
    fill(shaping)
    questions = Questions(shaping.storage, shaping.catalog, "p")
    ask = f"select experience_id, shaped_reward from experiences{order}"
    before = questions.ask(ask).to_pylist()
    assert squeeze(shaping).deleted == 9
    parts = [row for part in questions.batches(ask)[1] for row in part.to_pylist()]
    assert sorted(parts, key=str) == sorted(before, key=str)


def test_an_answer_whose_files_are_merged_and_deleted_while_it_is_read_is_to_be_asked_again(table: Table) -> None:
    fill(table)
    questions = Questions(table.storage, table.catalog, None)
    _, parts = questions.batches(FAILS_LATE)
    assert next(parts).num_rows > 0
    assert squeeze(table).deleted == 3
    with pytest.raises(QueryError, match="^files were merged and deleted while their rows were read; ask again"):
        list(parts)
    with pytest.raises(QueryError, match="too late"):
        list(questions.batches(FAILS_LATE)[1])


@pytest.mark.parametrize("on", ["list", "read"])
def test_a_question_finds_what_is_merged_and_deleted_while_it_opens_the_files(on: str, shaping: Table) -> None:
    fill(shaping)
    before = shaping.ask("select * from experiences order by experience_id")
    questions = Questions(Racing(shaping, on), shaping.catalog, "p")
    assert questions.ask("select * from experiences order by experience_id").to_pylist() == before
    assert questions.damaged == {}
