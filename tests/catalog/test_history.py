"""Snapshots, compaction and retention: what the table was stays known for as long as anything needs it."""

import pytest

from rft_core.catalog import Catalog
from rft_core.errors import LostClaimError, QueryError
from tests.catalog.ledger import claim, commit, file_of, fill, group_ids, lease, overlay, rows, store, take_over, waiting


def merge(catalog: Catalog, old: list[str], key: str = "merged") -> None:
    """Put one segment in the place of others."""
    catalog.segments.intend(key, f"segments/{key}.parquet", "compaction")
    catalog.history.replace_segments(old, key, file_of(f"segments/{key}.parquet"), 1)


def merge_overlays(catalog: Catalog, old: list[str], key: str = "merged") -> None:
    catalog.segments.intend(key, f"overlays/{key}.parquet", "compaction")
    catalog.history.replace_overlays(old, key, "p", file_of(f"overlays/{key}.parquet"))


def segments(catalog: Catalog, at: int | None = None) -> list[str]:
    return [key for key, _ in catalog.segments.files(at)]


def collectable(catalog: Catalog, *in_use: int, ended_before_s: float = 0.0) -> list[str]:
    return [key for _, key, _ in catalog.history.collectable(in_use, ended_before_s)]


def three(catalog: Catalog) -> list[str]:
    """Three segments of one group each; nothing of them waits for anything."""
    generation = take_over(catalog)
    ids = [fill(catalog, 1, [{}])[0] for _ in range(3)]
    claim(catalog, 1, generation)
    commit(catalog, 1, ids, generation)
    return ids


def test_a_pinned_state_keeps_its_number_until_it_is_let_go(catalog: Catalog) -> None:
    fill(catalog, 1, [{}])
    assert catalog.history.pin("before") == 1
    fill(catalog, 2, [{}])
    assert catalog.history.pin("before") == 1
    assert catalog.history.pin("after\x00") == 2
    assert catalog.history.pins() == {"before": 1, "after\\x00": 2}
    assert [catalog.history.named(name) for name in ("before", "after\x00")] == [1, 2]
    catalog.history.unpin("before")
    catalog.history.unpin("never pinned")
    with pytest.raises(QueryError, match=r"no state of the table is pinned as before; pinned are: after\\x00"):
        catalog.history.named("before")
    catalog.history.unpin("after\x00")
    with pytest.raises(QueryError, match="pinned are: none"):
        catalog.history.named("before")
    assert catalog.history.pin("before") == 2


def test_segments_say_whether_anything_in_them_waits(catalog: Catalog) -> None:
    generation = take_over(catalog)
    done = fill(catalog, 1, [{}])
    claim(catalog, 1, generation)
    commit(catalog, 1, done, generation)
    for step, waits in enumerate([{}, {"status": "pending"}, {"queue": "shaping"}], start=2):
        fill(catalog, step, [{"status": "failed"}, waits])
    assert [(part.key, part.busy) for part in catalog.history.segments()] == [
        ("step-1-0", False),
        ("step-2-0", True),
        ("step-3-0", True),
        ("step-4-0", True),
    ]
    assert all(part.created_at <= catalog.history.now() for part in catalog.history.segments())


def test_a_merged_segment_takes_the_place_of_others_and_of_what_they_hold(catalog: Catalog) -> None:
    ids = three(catalog)
    before = catalog.segments.snapshot()
    merge(catalog, ["step-1-0", "step-1-1"])
    assert segments(catalog) == ["step-1-2", "merged"]
    assert segments(catalog, before) == ["step-1-0", "step-1-1", "step-1-2"]
    assert {group_id: key for group_id, (key, _) in catalog.segments.of_groups(ids).items()} == {
        ids[0]: "merged",
        ids[1]: "merged",
        ids[2]: "step-1-2",
    }
    assert catalog.segments.groups_in("merged") == dict.fromkeys(ids[:2], 4)
    assert catalog.segments.find("step-1-0") is not None  # an append that comes again still changes nothing
    assert [row["origin"] for row in rows(catalog, "groups", "slot")] == ["step-1-0", "step-1-1", "step-1-2"]
    assert [row["step"] for row in rows(catalog, "segments") if row["key"] == "merged"] == [1]
    assert catalog.leases.fates() == {"trained": 3}
    assert catalog.audit.breaches(None) == []


def test_of_two_compactions_of_the_same_segments_one_fails_and_leaves_nothing(catalog: Catalog) -> None:
    three(catalog)
    for name in ("slow", "quick"):
        catalog.segments.intend("merged", f"segments/{name}.parquet", "compaction")
    catalog.history.replace_segments(["step-1-0", "step-1-1"], "merged", file_of("segments/quick.parquet"), 1)
    state = catalog.segments.snapshot()
    for key, old in (("merged", ["step-1-0", "step-1-1"]), ("other", ["step-1-1", "step-1-2"])):
        if key == "other":
            catalog.segments.intend(key, "segments/slow.parquet", "compaction")
        with pytest.raises(LostClaimError, match=r"of 2 files are no part of the table any more; another compaction went first"):
            catalog.history.replace_segments(old, key, file_of("segments/slow.parquet"), 1)
    assert (catalog.segments.snapshot(), segments(catalog)) == (state, ["step-1-2", "merged"])
    with pytest.raises(LostClaimError, match="the intent to write third was taken back"):
        catalog.history.replace_segments(["step-1-2"], "third", file_of("segments/third.parquet"), 1)


def test_a_merged_overlay_says_the_newest_of_what_others_said(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 2)
    files = [overlay(catalog, "a", ids), overlay(catalog, "b", ids[:1])]
    at = catalog.segments.snapshot()
    merge_overlays(catalog, ["a", "b"])
    merged = file_of("overlays/merged.parquet")
    assert catalog.segments.overlays_of("p", ids) == dict.fromkeys(ids, merged)
    assert catalog.segments.overlays_of("p", ids, at) == {ids[0]: files[1], ids[1]: files[0]}
    assert [key for key, _, _ in catalog.segments.overlay_files("p")] == ["merged"]
    assert [part.key for part in catalog.history.overlays("p")] == ["merged"]
    assert catalog.history.pipelines() == ["p"]
    catalog.segments.intend("merged", "overlays/slow.parquet", "compaction")
    with pytest.raises(LostClaimError, match="2 of 2 overlays say something old"):
        catalog.history.replace_overlays(["a", "b"], "merged", "p", file_of("overlays/slow.parquet"))


def test_an_overlay_that_came_while_others_were_merged_keeps_them_from_saying_something_old(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 2)
    overlay(catalog, "a", ids[:1])
    overlay(catalog, "b", ids[1:])
    overlay(catalog, "newest", ids[:1])
    with pytest.raises(LostClaimError, match="1 of 2 overlays say something old; merge them without what is superseded"):
        merge_overlays(catalog, ["a", "b"])
    assert [part.key for part in catalog.history.overlays("p")] == ["a", "b", "newest"]
    merge_overlays(catalog, ["a", "b", "newest"])
    assert catalog.segments.overlays_of("p", ids) == dict.fromkeys(ids, file_of("overlays/merged.parquet"))


def test_overlays_of_which_another_says_something_newer_are_named(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 3)
    overlay(catalog, "a", ids[:2])
    overlay(catalog, "b", ids[1:])
    overlay(catalog, "c", ids[2:])
    overlay(catalog, "of-another", ids, pipeline="q")
    assert catalog.history.superseded(["a", "b", "c"]) == set()
    assert catalog.history.superseded(["a", "b"]) == {"b"}
    assert catalog.history.superseded(["a", "c"]) == {"a"}
    assert catalog.history.superseded(["b", "c"]) == set()
    assert catalog.history.superseded([]) == set()


def test_what_was_let_go_is_no_part_of_the_table_and_keeps_its_fates(catalog: Catalog) -> None:
    ids = three(catalog)
    state = catalog.segments.snapshot()
    catalog.history.let_go(["step-1-0"])
    assert segments(catalog) == ["step-1-1", "step-1-2"]
    assert segments(catalog, state) == ["step-1-0", "step-1-1", "step-1-2"]
    assert catalog.leases.fates() == {"trained": 3}
    assert catalog.segments.totals()["segments"] == 2
    with pytest.raises(LostClaimError, match="1 of 1 files are no part of the table any more"):
        catalog.history.let_go(["step-1-0"])
    assert set(catalog.segments.of_groups(ids)) == set(ids)  # until its file is deleted
    catalog.history.collected("segments", ["step-1-0"])
    assert set(catalog.segments.of_groups(ids)) == set(ids[1:])


def test_only_what_no_state_in_use_needs_may_be_deleted(catalog: Catalog) -> None:
    three(catalog)
    state = catalog.segments.snapshot()
    assert catalog.history.pin("kept") == state
    merge(catalog, ["step-1-0", "step-1-1"])
    assert collectable(catalog) == []
    catalog.history.unpin("kept")
    assert collectable(catalog) == ["step-1-0", "step-1-1"]
    assert collectable(catalog, state) == []
    assert collectable(catalog, 1) == ["step-1-1"]  # which came after that state
    assert collectable(catalog, 0, state + 1) == ["step-1-0", "step-1-1"]
    assert collectable(catalog, ended_before_s=3600.0) == []  # somebody may be reading it
    assert catalog.history.collectable([], 0.0)[0] == ("segments", "step-1-0", "segments/step-1-0.parquet")


def test_overlays_may_be_deleted_as_segments_may(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 2)
    overlay(catalog, "a", ids)
    overlay(catalog, "b", ids[:1])
    at = catalog.segments.snapshot()
    merge_overlays(catalog, ["a", "b"])
    assert collectable(catalog, at) == []
    assert catalog.history.collectable([], 0.0) == [("overlays", key, f"overlays/{key}.parquet") for key in "ab"]
    catalog.history.collected("overlays", ["a", "b"])
    assert collectable(catalog) == []
    assert catalog.segments.overlays_of("p", ids) == dict.fromkeys(ids, file_of("overlays/merged.parquet"))
    assert catalog.segments.overlays_of("p", ids, at) == {}
    assert catalog.segments.has_overlay("a")
    assert catalog.audit.breaches("p") == []


def test_what_was_deleted_is_part_of_no_state(catalog: Catalog) -> None:
    three(catalog)
    state = catalog.segments.snapshot()
    merge(catalog, ["step-1-0", "step-1-1"])
    catalog.history.collected("segments", ["step-1-0", "step-1-1"])
    assert collectable(catalog) == []
    assert segments(catalog, state) == ["step-1-2"]
    assert segments(catalog) == ["step-1-2", "merged"]


def test_the_states_that_claims_are_read_at_are_known(catalog: Catalog) -> None:
    generation = take_over(catalog)
    for step in (1, 2, 3):
        fill(catalog, step, [{}])
        claim(catalog, step, generation)
    assert catalog.history.of_claims(1) == [1, 2, 3]
    assert catalog.history.of_claims(3) == [3]
    assert catalog.history.of_claims(4) == []


def test_more_files_than_fit_into_one_statement_are_merged(catalog: Catalog) -> None:
    keys = [f"s-{number:04}" for number in range(1100)]
    with catalog._database.write() as connection:
        many = [("segments", "explorer, step, schema_version", "'e', 1, 1"), ("overlays", "pipeline, account", "'p', '[]'")]
        for start, (table, names, values) in enumerate(many):
            for number, key in enumerate(keys, start=1 + start * len(keys)):
                connection.exec_driver_sql(
                    f"insert into {table} (key, sequence, uri, rows, bytes, sha256, created_at, {names}) "
                    f"values ('{key}', {number}, '{table}/{key}', 1, 1, '', 0.0, {values})"
                )
        connection.exec_driver_sql(f"update meta set value = {2 * len(keys)} where key = 'sequence'")
    merge(catalog, keys)
    assert catalog.history.superseded(keys) == set()
    merge_overlays(catalog, keys)
    assert segments(catalog) == [part.key for part in catalog.history.overlays("p")] == ["merged"]
    assert len(collectable(catalog)) == 2200
    for table in ("segments", "overlays"):
        catalog.history.collected(table, keys)
    assert collectable(catalog) == []


def test_a_merged_segment_holds_what_still_waits_too(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    for one in issued:
        store(catalog, f"s-{one.slot}", [one])
    merge(catalog, ["s-0", "s-1"])
    assert waiting(catalog) == group_ids(issued)
    assert claim(catalog, 1, take_over(catalog)).group_ids == tuple(group_ids(issued))
