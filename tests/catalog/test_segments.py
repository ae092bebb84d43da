"""How a file becomes part of the table: once, in one transaction, and only for whoever still holds its leases."""

import pytest

from rft_core.catalog import Catalog, StoredFile
from rft_core.errors import LostClaimError
from tests.catalog.ledger import claim, commit, group, group_ids, lease, store


def overlay(catalog: Catalog, pipeline: str, segment: str, dropped: dict[str, str] | None = None, uri: str = "overlays/o.parquet") -> None:
    catalog.segments.commit_overlay(pipeline, segment, StoredFile(uri, 4, "1" * 64), [{"name": "op"}], dropped or {})


def test_a_commit_makes_the_segment_and_closes_its_leases(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    file = store(catalog, "a", issued)
    assert catalog.segments.find("a") == file
    assert catalog.segments.files() == [("a", file)]
    assert catalog.segments.intended_uris() == []
    assert catalog.leases.open(1) == []
    assert [one.group_id for one in catalog.claims.ready()] == group_ids(issued)
    assert catalog.segments.groups_of("a") == group_ids(issued)
    assert catalog.segments.of_groups(group_ids(issued)) == dict.fromkeys(group_ids(issued), ("a", file))


def test_a_swept_writer_fails_and_leaves_nothing(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    catalog.segments.intend("a", "segments/slow.parquet")
    assert catalog.segments.intended_uris() == ["segments/slow.parquet"]
    catalog.segments.forget_intents()
    with pytest.raises(LostClaimError, match="the intent to write a was taken back by another process"):
        catalog.segments.commit("a", StoredFile("segments/slow.parquet", 8, "0"), 1, "e", 1, 1, [group(one) for one in issued])
    check_nothing_stored(catalog)
    assert catalog.leases.open(1) == issued


def test_a_writer_whose_intent_was_replaced_fails(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 1)
    catalog.segments.intend("a", "segments/slow.parquet")
    catalog.segments.intend("a", "segments/quick.parquet")
    with pytest.raises(LostClaimError):
        catalog.segments.commit("a", StoredFile("segments/slow.parquet", 4, "0"), 1, "e", 1, 1, [group(issued[0])])
    catalog.segments.commit("a", StoredFile("segments/quick.parquet", 4, "0"), 1, "e", 1, 1, [group(issued[0])])
    assert catalog.leases.fates() == {"ready": 1}


def test_a_writer_whose_leases_were_closed_fails_and_leaves_nothing(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 3)
    store(catalog, "first", issued[:1])
    catalog.leases.expire_open("its explorer is dead")
    again = lease(catalog, 1, 0)
    sequence = catalog.segments.snapshot()
    with pytest.raises(LostClaimError, match="2 leases of a were closed by another process"):
        store(catalog, "a", issued[1:])
    assert catalog.segments.find("a") is None
    assert catalog.segments.snapshot() == sequence
    assert len(catalog.claims.ready()) == 1
    assert catalog.leases.open(1) == again
    # Whoever holds the leases now can store them, also under the same key.
    store(catalog, "a", again)
    assert catalog.leases.fates() == {"expired": 2, "ready": 3}


def test_sequence_numbers_are_in_commit_order(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 3)
    for key, one in zip("cab", issued, strict=True):
        catalog.segments.intend(key, f"segments/{key}.parquet")
        assert one.slot == "cab".index(key)
    snapshots = [catalog.segments.snapshot()]
    for key, one in zip("bca", issued, strict=True):
        catalog.segments.commit(key, StoredFile(f"segments/{key}.parquet", 4, "0"), 1, "e", 1, 1, [group(one)])
        overlay(catalog, "p", key)
        snapshots.append(catalog.segments.snapshot())
    assert snapshots == [{"segment": s, "overlay": o} for s, o in ((0, 0), (1, 2), (3, 4), (5, 6))]
    assert [key for key, _ in catalog.segments.files()] == ["b", "c", "a"]
    assert catalog.segments.keys_of_step(1) == ["b", "c", "a"]


def test_a_failed_commit_takes_no_sequence_number(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    catalog.leases.expire_open("dead")
    with pytest.raises(LostClaimError):
        store(catalog, "late", issued)
    store(catalog, "a", lease(catalog, 1, 0))
    assert catalog.segments.snapshot()["segment"] == 1


def test_unshaped_segments_are_those_without_an_overlay_of_the_pipeline(catalog: Catalog) -> None:
    for step in (1, 1, 2):
        issued = lease(catalog, step, 1)
        store(catalog, f"{step}-{issued[0].slot}", issued)
    overlay(catalog, "p", "1-0")
    assert catalog.segments.unshaped(1, "p") == ["1-1"]
    assert catalog.segments.unshaped(1, "other") == ["1-0", "1-1"]
    assert catalog.segments.unshaped(2, "p") == ["2-0"]


def test_a_second_overlay_of_the_same_key_changes_nothing(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    store(catalog, "a", issued)
    overlay(catalog, "p", "a", {group_ids(issued)[0]: "op: why"}, uri="overlays/first.parquet")
    snapshot = catalog.segments.snapshot()
    overlay(catalog, "p", "a", dict.fromkeys(group_ids(issued), "op: again"), uri="overlays/second.parquet")
    assert catalog.segments.snapshot() == snapshot
    found = catalog.segments.overlay("p", "a")
    assert found is not None
    assert found.uri == "overlays/first.parquet"
    assert catalog.segments.overlay_files("p") == [found]
    assert catalog.segments.overlay("other", "a") is None
    assert catalog.leases.of_step(1) == {0: "dropped", 1: "ready"}


def test_an_overlay_drops_only_what_is_ready(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 4)
    generation = catalog.claims.take_over("t")
    store(catalog, "a", issued, ["ready", "failed", "ready", "pending"])
    claim(catalog, 1, group_ids(issued)[:1], generation)
    commit(catalog, 1, group_ids(issued)[:1], generation)
    # Shaped again under another pipeline, as later offline use does: the first fate stays.
    overlay(catalog, "p", "a", dict.fromkeys(group_ids(issued), "op: all rewards equal"))
    assert catalog.leases.of_step(1) == {0: "trained", 1: "failed", 2: "dropped", 3: "pending"}
    columns, rows = catalog.relation("fates")
    reasons = {row[list(columns).index("slot")]: row[list(columns).index("reason")] for row in rows}
    assert reasons == {0: "", 1: "it is failed", 2: "op: all rewards equal", 3: "it is pending"}


def check_nothing_stored(catalog: Catalog) -> None:
    assert catalog.segments.files() == []
    assert catalog.claims.ready() == []
    assert catalog.segments.snapshot() == {"segment": 0, "overlay": 0}
