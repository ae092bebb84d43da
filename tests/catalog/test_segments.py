"""How a file becomes part of the table: once, in one transaction, and only for whoever still holds its leases."""

import pytest
from sqlalchemy import update

from rft_core.catalog import Catalog, schema
from rft_core.errors import LostClaimError
from tests.catalog.ledger import (
    OVER,
    claim,
    commit,
    file_of,
    fill,
    group,
    group_ids,
    lease,
    overlay,
    rows,
    store,
    store_groups,
    take_over,
    waiting,
)


def test_a_commit_makes_the_segment_and_closes_its_leases(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    file = store(catalog, "a", issued)
    assert catalog.segments.find("a") == file
    assert catalog.segments.files() == [("a", file)]
    assert catalog.segments.intended_uris() == []
    assert catalog.leases.open(1) == []
    assert waiting(catalog) == group_ids(issued) == list(catalog.segments.groups_of_step(1))
    assert catalog.segments.groups_in("a") == dict.fromkeys(group_ids(issued), 4)
    assert catalog.segments.of_groups(group_ids(issued)) == dict.fromkeys(group_ids(issued), ("a", file))
    assert catalog.segments.totals() == {"segments": 1, "rows": 8, "bytes": 100}


def test_what_somebody_swept_fails_and_leaves_nothing(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    catalog.segments.intend("a", "segments/slow.parquet", "explorer")
    assert catalog.segments.intended_uris() == ["segments/slow.parquet"]
    assert catalog.segments.sweep("explorer") == ["segments/slow.parquet"]
    with pytest.raises(LostClaimError, match="the intent to write a was taken back by another process"):
        catalog.segments.commit("a", file_of("segments/slow.parquet"), "explorer", 1, 1, [group(one) for one in issued])
    check_nothing_stored(catalog)
    assert catalog.leases.open(1) == issued


def test_a_committed_file_is_never_swept(catalog: Catalog) -> None:
    store(catalog, "a", lease(catalog, 1, 1))
    overlay(catalog, "o", group_ids(lease(catalog, 1, 1)))
    assert catalog.segments.sweepable("explorer", 0.0) == []
    assert catalog.segments.sweep("explorer", 0.0) == []


def test_each_sweeps_its_own_and_what_is_old_of_others(catalog: Catalog) -> None:
    for name in ("mine", "theirs", "theirs-old", "theirs-ahead"):
        catalog.segments.intend(name, f"segments/{name}.parquet", name.partition("-")[0])
    age(catalog, "theirs-old", -3600.0)
    age(catalog, "theirs-ahead", 3600.0)  # announced before the clock jumped back
    old = ["segments/theirs-ahead.parquet", "segments/theirs-old.parquet"]
    assert [uri for _, uri in catalog.segments.sweepable()] == old
    assert catalog.segments.sweep("mine") == ["segments/mine.parquet", *old]
    assert catalog.segments.intended_uris() == ["segments/theirs.parquet"]
    assert catalog.segments.sweep(older_than_s=0.0) == ["segments/theirs.parquet"]


def test_a_sweep_takes_an_intent_back_before_it_removes_the_file_and_forgets_it_after(catalog: Catalog) -> None:
    catalog.segments.intend("a", "segments/slow.parquet", "killed")

    def remove(uri: str) -> None:
        with pytest.raises(LostClaimError):
            catalog.segments.commit("a", file_of(uri), "explorer", 1, 1, [])
        raise OSError("killed while it removes")

    with pytest.raises(OSError, match="killed"):
        catalog.segments.sweep("killed", remove=remove)
    removed: list[str] = []
    assert catalog.segments.sweep("another", remove=removed.append) == removed == ["segments/slow.parquet"]
    assert catalog.segments.intended_uris() == []


def test_of_two_tries_to_write_the_same_the_first_to_commit_stays(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 1)
    for name in ("slow", "quick"):
        catalog.segments.intend("a", f"segments/{name}.parquet", "explorer")
    catalog.segments.commit("a", file_of("segments/quick.parquet"), "explorer", 1, 1, [group(issued[0])])
    with pytest.raises(LostClaimError, match="1 leases of a are unknown, or have their group already"):
        catalog.segments.commit("a", file_of("segments/slow.parquet"), "explorer", 1, 1, [group(issued[0])])
    assert catalog.leases.fates() == {"ready": 1}
    # What the other one wrote is still announced, so that somebody removes it.
    assert catalog.segments.sweep("explorer") == ["segments/slow.parquet"]


def test_groups_whose_leases_ended_are_kept_as_late_and_never_selected(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 3, lease_s=OVER)
    again = lease(catalog, 1, 0)
    file = store(catalog, "late", issued, ["ready", "pending", "failed"])
    assert catalog.leases.open(1) == again
    assert catalog.leases.fates() == {"expired": 3, "in_flight": 3}
    found = rows(catalog, "groups", "slot")
    assert [(row["status"], row["queue"], row["reason"]) for row in found] == [("late", None, "its lease had ended: expired")] * 3
    assert waiting(catalog) == list(catalog.segments.groups_of_step(1)) == []
    assert catalog.segments.of_groups(group_ids(issued)) == dict.fromkeys(group_ids(issued), ("late", file))
    store(catalog, "in-time", again)
    assert waiting(catalog) == group_ids(again)
    assert claim(catalog, 1, take_over(catalog)).group_ids == tuple(group_ids(again))
    assert catalog.audit.breaches(None) == []


def test_an_append_may_be_late_in_part(catalog: Catalog) -> None:
    late = lease(catalog, 1, 1, lease_s=OVER)
    in_time = lease(catalog, 2, 1)
    store(catalog, "a", [*late, *in_time])
    assert catalog.leases.fates() == {"expired": 1, "ready": 1}
    assert waiting(catalog) == group_ids(in_time)


def test_what_comes_after_the_end_of_the_run_is_late(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 1)
    catalog.leases.end_run()
    store(catalog, "a", issued)
    assert catalog.leases.fates() == {"unused": 1}
    assert [row["reason"] for row in rows(catalog, "groups")] == ["its lease had ended: unused"]


def test_nobody_brings_a_second_group_for_a_lease(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 3)
    store(catalog, "first", issued[:1])
    sequence = catalog.segments.snapshot()
    with pytest.raises(LostClaimError, match="1 leases of a are unknown, or have their group already; let the one who wrote it go on"):
        store(catalog, "a", issued)
    assert catalog.segments.find("a") is None
    assert catalog.segments.snapshot() == sequence
    assert catalog.leases.open(1) == issued[1:]
    store(catalog, "a", issued[1:])
    assert catalog.leases.fates() == {"ready": 3}


def test_sequence_numbers_are_in_commit_order(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 3)
    for key in "cab":
        catalog.segments.intend(key, f"segments/{key}.parquet", "explorer")
    snapshots = [catalog.segments.snapshot()]
    for key, one in zip("bca", issued, strict=True):
        catalog.segments.commit(key, file_of(f"segments/{key}.parquet"), "explorer", 1, 1, [group(one)])
        overlay(catalog, f"p-{key}", group_ids([one]))
        snapshots.append(catalog.segments.snapshot())
    assert snapshots == [0, 2, 4, 6]
    assert [key for key, _ in catalog.segments.files()] == ["b", "c", "a"]
    assert [key for key, _ in catalog.segments.files(at=3)] == ["b", "c"]
    assert [(key, sequence) for key, sequence, _ in catalog.segments.overlay_files("p", at=5)] == [("p-b", 2), ("p-c", 4)]
    assert catalog.segments.num_appends(1) == 3


def test_a_failed_commit_takes_no_sequence_number(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    store(catalog, "a", issued)
    with pytest.raises(LostClaimError):
        store(catalog, "b", issued)
    store(catalog, "c", lease(catalog, 1, 1))
    assert catalog.segments.snapshot() == 2


def test_groups_wait_for_the_pipeline_by_the_append_that_brought_them(catalog: Catalog) -> None:
    to_shape = {"queue": "shaping"}
    first = fill(catalog, 1, [to_shape, {}, to_shape])
    second = fill(catalog, 2, [to_shape, {"status": "failed"}])
    assert catalog.segments.to_shape() == {"step-1-0": [first[0], first[2]], "step-2-0": [second[0]]}
    assert waiting(catalog) == [first[1]]
    overlay(catalog, "o", [first[0]])
    assert catalog.segments.to_shape() == {"step-1-0": [first[2]], "step-2-0": [second[0]]}
    assert waiting(catalog) == first[:2]
    catalog.segments.pass_shaping()
    assert catalog.segments.to_shape() == {}
    assert waiting(catalog) == [*first, second[0]]


def test_a_second_overlay_of_the_same_key_changes_nothing(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 2)
    assert not catalog.segments.has_overlay("o")
    first = overlay(catalog, "o", ids, dropped={ids[0]: "op: why"})
    snapshot = catalog.segments.snapshot()
    catalog.segments.intend("o", "overlays/second.parquet", "explorer")
    catalog.segments.commit_overlay("o", "p", file_of("overlays/second.parquet"), ids, [], dict.fromkeys(ids, "op: again"))
    assert catalog.segments.has_overlay("o")
    assert catalog.segments.snapshot() == snapshot
    assert catalog.segments.overlay_files("p") == [("o", 2, first)] == catalog.segments.overlay_files()
    assert catalog.segments.overlay_files("other") == []
    assert catalog.leases.of_step(1) == {0: "dropped", 1: "ready"}
    assert catalog.segments.sweep("explorer") == ["overlays/second.parquet"]


def test_a_swept_overlay_fails_and_leaves_nothing(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}])
    catalog.segments.intend("o", "overlays/o.parquet", "explorer")
    catalog.segments.sweep("explorer")
    with pytest.raises(LostClaimError, match="the intent to write o was taken back"):
        catalog.segments.commit_overlay("o", "p", file_of("overlays/o.parquet"), ids, [], {})
    assert catalog.segments.overlay_files() == []
    assert catalog.segments.to_shape() == {"step-1-0": ids}


def test_an_overlay_drops_only_what_waits_for_it(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{}, {"status": "failed"}, {"queue": "shaping"}, {"status": "pending"}])
    claim(catalog, 1, generation)
    commit(catalog, 1, ids[:1], generation)
    overlay(catalog, "o", ids, dropped=dict.fromkeys(ids, "op: all rewards equal"))
    assert catalog.leases.of_step(1) == {0: "trained", 1: "failed", 2: "dropped", 3: "pending"}
    assert [row["reason"] for row in rows(catalog, "fates", "slot")] == ["", "it is failed", "op: all rewards equal", "it is pending"]


def test_shaping_under_another_pipeline_moves_nothing_on(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 2)
    overlay(catalog, "o", ids, pipeline="another", dropped={ids[0]: "op: why"}, moves_on=False)
    assert catalog.segments.to_shape() == {"step-1-0": ids}
    assert catalog.leases.fates() == {"ready": 2}
    assert set(catalog.segments.overlays_of("another", ids)) == set(ids)
    assert catalog.segments.overlays_of("p", ids) == {}


def test_the_newest_overlay_over_a_group_counts_or_the_newest_at_a_state(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 2)
    first = overlay(catalog, "first", ids)
    at = catalog.segments.snapshot()
    second = overlay(catalog, "second", ids[:1])
    overlay(catalog, "of-another", ids, pipeline="q")
    assert catalog.segments.overlays_of("p", ids) == {ids[0]: second, ids[1]: first}
    assert catalog.segments.overlays_of("p", ids, at) == dict.fromkeys(ids, first)
    assert catalog.segments.overlays_of("p", ids, at - 1) == {}


def test_more_groups_than_fit_into_one_statement_are_stored_and_found(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 1200)
    file = store(catalog, "a", issued)
    ids = group_ids(issued)
    overlay(catalog, "o", ids)
    assert catalog.segments.of_groups(ids) == dict.fromkeys(ids, ("a", file))
    assert len(catalog.segments.overlays_of("p", ids)) == 1200
    assert catalog.leases.fates() == {"ready": 1200}


def test_reasons_and_names_of_any_text_can_be_stored(catalog: Catalog) -> None:
    strange, kept = "a\x00b\udc80", "a\\x00b\\udc80"
    issued = lease(catalog, 1, 3)
    catalog.segments.intend(strange, "segments/x", strange)
    assert catalog.segments.sweep(strange) == ["segments/x"]
    store_groups(catalog, "a", 1, [group(issued[0], "failed", reason=strange), group(issued[1], queue="shaping")])
    overlay(catalog, "o", group_ids(issued[1:2]), dropped={group_ids(issued)[1]: strange})
    store(catalog, "b", issued[2:], rejected=strange)
    assert [row["reason"] for row in rows(catalog, "fates", "slot")] == [kept] * 3


def age(catalog: Catalog, key: str, by_s: float) -> None:
    """Move the time at which a file was announced."""
    table = schema.intents
    with catalog._database.write() as connection:
        connection.execute(update(table).where(table.c.key == key).values(created_at=table.c.created_at + by_s))


def check_nothing_stored(catalog: Catalog) -> None:
    assert catalog.segments.files() == []
    assert rows(catalog, "groups") == []
    assert catalog.segments.snapshot() == 0


def test_the_groups_that_came_between_two_states_are_found_with_their_status(catalog: Catalog) -> None:
    first = fill(catalog, 1, [{}, {"status": "failed", "queue": None}])
    between = catalog.segments.snapshot()
    second = fill(catalog, 7, [{}])
    assert catalog.segments.groups_between(0, between) == {first[0]: "ready", first[1]: "failed"}
    assert catalog.segments.groups_between(between, catalog.segments.snapshot()) == {second[0]: "ready"}
