"""Claims and steps: chosen once, committed once, by one trainer."""

import pytest

from rft_core.catalog import Catalog, Claim, ReadyGroup, StepRow, Version
from rft_core.errors import LostClaimError
from tests.catalog.ledger import claim, commit, group_ids, lease, store


def test_ready_groups_come_oldest_first(catalog: Catalog) -> None:
    second, first = lease(catalog, 2, 2), lease(catalog, 1, 2)
    store(catalog, "b", second[::-1])
    store(catalog, "a", first, ["ready", "failed"])
    assert catalog.claims.ready() == [
        ReadyGroup(group_ids(first)[0], 1, 0, 0),
        ReadyGroup(group_ids(second)[0], 2, 0, 0),
        ReadyGroup(group_ids(second)[1], 2, 1, 0),
    ]


def test_a_claim_comes_back_as_it_was_made(catalog: Catalog) -> None:
    generation = catalog.claims.take_over("t")
    made = Claim(1, ("g2", "g1"), {"segment": 3, "overlay": 4, "pipeline": "p", "staleness": 1})
    assert catalog.claims.find(1) is None
    catalog.claims.make(made, (), generation)
    assert catalog.claims.find(1) == made
    assert catalog.claims.find(2) is None


def test_what_is_too_old_for_a_claim_becomes_stale(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    store(catalog, "a", issued)
    claim(catalog, 5, group_ids(issued)[1:], catalog.claims.take_over("t"), stale=group_ids(issued)[:1])
    assert catalog.leases.of_step(1) == {0: "stale", 1: "ready"}
    assert ("stale", "older than step 5 allows") in {row[-2:] for row in catalog.relation("fates")[1]}


def test_a_step_that_is_committed_twice_keeps_its_first_row(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    store(catalog, "a", issued)
    generation = catalog.claims.take_over("t")
    commit(catalog, 1, group_ids(issued)[:1], generation, loss=0.5)
    (first,) = catalog.claims.steps()
    assert (first.step, first.status, first.version, dict(first.metrics), first.checkpoint) == (1, "trained", 1, {"loss": 0.5}, None)
    assert first.committed_at > 1e9
    commit(catalog, 1, group_ids(issued)[:1], generation, loss=0.7)
    assert catalog.claims.steps() == [first]


def test_a_group_is_trained_first_by_one_step(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    store(catalog, "a", issued)
    generation = catalog.claims.take_over("t")
    commit(catalog, 1, group_ids(issued)[:1], generation)
    commit(catalog, 2, group_ids(issued), generation)
    columns, rows = catalog.relation("fates")
    assert [(row[list(columns).index("fate")], row[list(columns).index("trained_step")]) for row in rows] == [
        ("trained", 1),
        ("trained", 2),
    ]


def test_claimed_groups_without_anything_to_learn_from_are_dropped(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 3)
    store(catalog, "a", issued)
    generation = catalog.claims.take_over("t")
    ids = group_ids(issued)
    claim(catalog, 1, ids, generation)
    left_out = {ids[1]: "all rewards equal"}
    for _ in range(2):
        catalog.claims.commit_step(StepRow(1, "trained", 1, {}, None, 1.0, 0.0), [ids[0], ids[2]], left_out, generation)
        assert catalog.leases.of_step(1) == {0: "trained", 1: "dropped", 2: "trained"}
    # A step that trained it before keeps it, whatever a later one says.
    catalog.claims.commit_step(StepRow(2, "trained", 2, {}, None, 1.0, 0.0), [], {ids[0]: "nothing to learn"}, generation)
    assert catalog.leases.of_step(1)[0] == "trained"


def test_steps_are_read_in_order_up_to_a_number(catalog: Catalog) -> None:
    generation = catalog.claims.take_over("t")
    for step in (2, 1, 10):
        commit(catalog, step, [], generation)
    assert [row.step for row in catalog.claims.steps()] == [1, 2, 10]
    assert [row.step for row in catalog.claims.steps(up_to=2)] == [1, 2]


def test_a_replaced_trainer_can_commit_nothing(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    store(catalog, "a", issued)
    ids = group_ids(issued)
    old, new = catalog.claims.take_over("process 1"), catalog.claims.take_over("process 2")
    assert new == old + 1
    for attempt in (
        lambda: claim(catalog, 1, ids[:1], old, stale=ids[1:]),
        lambda: commit(catalog, 1, ids, old),
        lambda: catalog.versions.record(Version(1, 1, "weights/v000001", "a"), old),
    ):
        with pytest.raises(LostClaimError, match="process 2 took over this run as its trainer; let that one go on"):
            attempt()
    assert catalog.claims.find(1) is None
    assert catalog.claims.steps() == []
    assert catalog.versions.all() == []
    assert catalog.leases.fates() == {"ready": 2}
    claim(catalog, 1, ids, new)
    commit(catalog, 1, ids, new)
    assert catalog.leases.fates() == {"trained": 2}


def test_an_empty_step_counts(catalog: Catalog) -> None:
    generation = catalog.claims.take_over("t")
    claim(catalog, 1, [], generation)
    catalog.claims.commit_step(StepRow(1, "skipped", 1, {}, "checkpoints/000001", 1.0, 0.0), [], {}, generation)
    (row,) = catalog.claims.steps()
    assert (row.status, row.checkpoint, row.metrics) == ("skipped", "checkpoints/000001", {})
