"""Claims and steps: chosen once, committed once, by one trainer."""

import pytest

from rft_core.catalog import Candidates, Catalog, Choice, Claim, Reuse, StepRow, Version
from rft_core.errors import LostClaimError
from tests.catalog.conftest import Place
from tests.catalog.ledger import (
    candidates,
    claim,
    commit,
    file_of,
    fill,
    group,
    group_ids,
    lease,
    oldest,
    overlay,
    replace_trainer,
    rows,
    store,
    take_over,
    waiting,
)


def test_a_claim_holds_what_was_chosen_and_the_state_that_it_is_read_at(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{"lowest_version": 3}, {"lowest_version": 1}, {"lowest_version": 2}])
    overlay(catalog, "o", ids)

    def choose(pool: Candidates) -> Choice:
        return Choice(list(pool.by("oldest"))[:2], {"cooling_down": 2})

    assert catalog.claims.find(5) is None
    made = catalog.claims.make(5, choose, 4, 3, "pipe", generation)
    assert made == Claim(
        5, (ids[1], ids[2]), {"sequence": 2, "pipeline": "pipe", "staleness": 3, "behind": {"2": 1, "3": 1}}, {"cooling_down": 2}
    )
    assert catalog.claims.find(5) == made
    assert catalog.claims.find(4) is None
    assert waiting(catalog) == ids[:1]
    assert [(row["uses"], row["claimed_step"], row["status"]) for row in rows(catalog, "groups", "slot")] == [
        (0, None, "ready"),
        (1, 5, "ready"),
        (1, 5, "ready"),
    ]


def test_a_step_that_has_a_claim_keeps_it_whatever_would_be_chosen_now(catalog: Catalog, place: Place) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{}] * 3)
    made = claim(catalog, 1, generation, count=1)
    fill(catalog, 1, [{}])

    def choose(pool: Candidates) -> Choice:
        raise AssertionError("a claimed step chooses nothing")

    assert catalog.claims.make(1, choose, 99, 0, "other", generation) == made
    other = place.open()
    assert other.claims.make(1, oldest(3), 0, 5, None, generation) == made
    other.close()
    assert catalog.leases.fates() == {"ready": 4}
    assert waiting(catalog)[:2] == ids[1:]


def test_a_choice_that_fails_leaves_nothing(catalog: Catalog) -> None:
    generation = take_over(catalog)
    fill(catalog, 1, [{"lowest_version": 0}, {"lowest_version": 9}])

    def choose(pool: Candidates) -> Choice:
        assert len(list(pool.by("oldest"))) == 1
        raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        catalog.claims.make(10, choose, 9, 1, None, generation)
    assert catalog.claims.find(10) is None
    assert catalog.leases.fates() == {"ready": 2}
    assert len(waiting(catalog)) == 2


def test_what_lies_too_far_behind_becomes_stale_and_is_counted(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{"lowest_version": version, "source": source} for version in (0, 2, 3) for source in ("policy", "human")])
    made = claim(catalog, 6, generation, max_staleness=3)
    assert made.group_ids == tuple(ids[2:])
    assert made.left_out == {"stale": 2}
    assert catalog.leases.of_step(1) == {0: "stale", 1: "stale", **dict.fromkeys(range(2, 6), "ready")}
    assert [row["reason"] for row in rows(catalog, "fates", "slot")][:2] == ["older than step 6 allows"] * 2
    assert made.snapshot["staleness"] == 3
    assert claim(catalog, 7, generation, max_staleness=3).left_out == {}


def test_what_still_waits_for_labels_or_shaping_is_not_stale_yet(catalog: Catalog) -> None:
    fill(catalog, 1, [{"status": "pending"}, {"queue": "shaping"}])
    assert claim(catalog, 9, take_over(catalog), max_staleness=0).left_out == {}
    assert catalog.leases.fates() == {"pending": 1, "ready": 1}


def test_claimed_groups_may_be_taken_again_by_the_steps_that_the_choice_names(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{"priority": 1.0}] * 2)
    catalog.claims.make(1, oldest(1, Reuse(0.9, again_from=3)), 0, 9, None, generation)
    assert [(one.group_id, one.uses, one.priority, one.again_from) for one in candidates(catalog)] == [
        (ids[0], 1, 0.9, 3),
        (ids[1], 0, 1.0, 0),
    ]
    commit(catalog, 1, ids[:1], generation)
    catalog.claims.make(2, oldest(2), 1, 9, None, generation)
    commit(catalog, 2, ids, generation)
    assert waiting(catalog) == []
    assert [(row["uses"], row["claimed_step"], row["trained_step"]) for row in rows(catalog, "groups", "slot")] == [(2, 2, 1), (1, 2, 2)]
    assert catalog.audit.breaches(None) == []


def test_a_trained_group_that_gets_too_old_to_be_taken_again_stays_trained(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{}])
    catalog.claims.make(1, oldest(1, Reuse(0.0, again_from=2)), 0, 1, None, generation)
    commit(catalog, 1, ids, generation)
    assert waiting(catalog) == ids
    made = claim(catalog, 3, generation, max_staleness=1)
    assert (made.group_ids, made.left_out) == ((), {"stale": 1})
    assert catalog.leases.fates() == {"trained": 1}
    assert waiting(catalog) == []


def test_a_step_that_is_committed_twice_keeps_its_first_row(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{}, {}])
    generation = take_over(catalog)
    commit(catalog, 1, ids[:1], generation, loss=0.5)
    (first,) = catalog.claims.steps()
    assert (first.step, first.status, first.version, dict(first.metrics), first.checkpoint) == (1, "trained", 1, {"loss": 0.5}, None)
    assert first.committed_at == pytest.approx(catalog.history.now(), abs=60.0)
    commit(catalog, 1, ids[:1], generation, loss=0.7)
    assert catalog.claims.steps() == [first]


def test_a_group_is_trained_first_by_one_step(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{}, {}])
    generation = take_over(catalog)
    commit(catalog, 1, ids[:1], generation)
    commit(catalog, 2, ids, generation)
    assert [(row["fate"], row["trained_step"]) for row in rows(catalog, "fates", "slot")] == [("trained", 1), ("trained", 2)]


def test_claimed_groups_without_anything_to_learn_from_are_dropped(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{}] * 3)
    generation = take_over(catalog)
    claim(catalog, 1, generation)
    for _ in range(2):
        commit(catalog, 1, [ids[0], ids[2]], generation, left_out={ids[1]: "all rewards equal\x00"})
        assert catalog.leases.of_step(1) == {0: "trained", 1: "dropped", 2: "trained"}
    assert rows(catalog, "fates", "slot")[1]["reason"] == "all rewards equal\\x00"
    # A step that trained it before keeps it, whatever a later one says.
    commit(catalog, 2, [], generation, left_out={ids[0]: "nothing to learn"})
    assert catalog.leases.of_step(1)[0] == "trained"


def test_a_group_to_be_taken_again_is_dropped_for_good_when_there_was_nothing_to_learn(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{}])
    catalog.claims.make(1, oldest(1, Reuse(0.0, again_from=2)), 0, 9, None, generation)
    commit(catalog, 1, [], generation, left_out={ids[0]: "all rewards equal"})
    assert waiting(catalog) == []
    assert catalog.leases.fates() == {"dropped": 1}


def test_more_groups_than_fit_into_one_statement_can_be_trained(catalog: Catalog) -> None:
    generation = take_over(catalog)
    issued = lease(catalog, 1, 1200)
    store(catalog, "a", issued)
    made = claim(catalog, 1, generation, count=2000)
    assert list(made.group_ids) == group_ids(issued)
    commit(catalog, 1, made.group_ids, generation)
    assert catalog.leases.fates() == {"trained": 1200}


def test_steps_are_read_in_order_up_to_a_number(catalog: Catalog) -> None:
    generation = take_over(catalog)
    for step in (2, 1, 10):
        commit(catalog, step, [], generation)
    assert [row.step for row in catalog.claims.steps()] == [1, 2, 10]
    assert [row.step for row in catalog.claims.steps(up_to=2)] == [1, 2]


def test_a_replaced_trainer_can_commit_nothing(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{}, {}])
    old, new = replace_trainer(catalog, "process 2")
    assert new == old + 1
    for attempt in (
        lambda: claim(catalog, 1, old, max_staleness=-1),
        lambda: commit(catalog, 1, ids, old),
        lambda: catalog.versions.check(Version(1, 1, "weights/v000001", "a"), old),
        lambda: catalog.versions.record(Version(1, 1, "weights/v000001", "a"), old),
        lambda: catalog.trainers.renew(old),
    ):
        with pytest.raises(LostClaimError, match="process 2 took over this run as its trainer; let that one go on"):
            attempt()
    assert catalog.claims.find(1) is None
    assert catalog.claims.steps() == []
    assert catalog.versions.all() == []
    assert catalog.leases.fates() == {"ready": 2}
    claim(catalog, 1, new)
    with pytest.raises(LostClaimError):  # also where there would be nothing to choose
        claim(catalog, 1, old)
    commit(catalog, 1, ids, new)
    assert catalog.leases.fates() == {"trained": 2}


def test_an_empty_step_counts(catalog: Catalog) -> None:
    generation = take_over(catalog)
    assert claim(catalog, 1, generation).group_ids == ()
    catalog.claims.commit_step(StepRow(1, "skipped", 1, {}, "checkpoints/000001", 1.0, 0.0), [], {}, generation)
    (row,) = catalog.claims.steps()
    assert (row.status, row.checkpoint, row.metrics) == ("skipped", "checkpoints/000001", {})


def test_what_is_stored_while_a_step_trains_is_for_the_next_one(catalog: Catalog) -> None:
    generation = take_over(catalog)
    first = fill(catalog, 1, [{}])
    made = claim(catalog, 1, generation)
    issued = lease(catalog, 2, 1)
    catalog.segments.intend("late", "segments/late.parquet", "explorer")
    catalog.segments.commit("late", file_of("segments/late.parquet"), "explorer", 2, 1, [group(issued[0])])
    assert claim(catalog, 1, generation) == made
    commit(catalog, 1, made.group_ids, generation)
    assert (made.group_ids, claim(catalog, 2, generation).group_ids) == (tuple(first), tuple(group_ids(issued)))
