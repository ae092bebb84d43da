"""Admission keeps explorers from running further ahead than the bound on staleness allows, whatever was restarted meanwhile."""

import random
from collections.abc import Callable

import pytest

from rft_core.catalog import Admission, Catalog, Lease
from tests.catalog.conftest import Place
from tests.catalog.ledger import OVER, claim, commit, group, oldest, rows, store_groups, take_over, task_id_at

B = 4


def admit(catalog: Catalog, version: int, bound: int, most: int = 100, explorer: str = "explorer", **how: object) -> list[Lease]:
    values = {"task_id_at": task_id_at, "end": None} | how
    return catalog.leases.admit(explorer, most, version, Admission(B, bound), **values)  # type: ignore[arg-type]


def finish(catalog: Catalog, lease: Lease, status: str = "ready", queue: str | None = "training") -> None:
    version = lease.policy_version
    assert version is not None
    new = group(lease, status, lowest_version=version, queue=queue)
    store_groups(catalog, f"{lease.step}-{lease.slot}-{lease.epoch}", lease.step, [new])


def train(catalog: Catalog, step: int, generation: int, bound: int) -> int:
    """One step; returns how far its oldest group lay behind."""
    made = claim(catalog, step, generation, B, bound)
    commit(catalog, step, made.group_ids, generation)
    return int(made.snapshot["staleness"])


@pytest.mark.parametrize(("bound", "given"), [(0, 4), (1, 8), (4, 20)])
def test_as_many_are_given_as_the_bound_lets_be_trained_in_time(catalog: Catalog, bound: int, given: int) -> None:
    leases = admit(catalog, 0, bound)
    assert [(one.step, one.slot, one.policy_version) for one in leases] == [(k // B + 1, k % B, 0) for k in range(given)]
    assert admit(catalog, 0, bound) == []


def test_what_is_under_way_counts_wherever_it_is(catalog: Catalog) -> None:
    generation = take_over(catalog)
    leases = admit(catalog, 0, 1)
    assert admit(catalog, 0, 1) == [], "in flight"
    for lease in leases[:4]:
        finish(catalog, lease)
    for lease in leases[4:6]:
        finish(catalog, lease, queue="shaping")
    assert admit(catalog, 0, 1) == [], "ready, or about to be"
    made = claim(catalog, 1, generation, B)
    assert admit(catalog, 0, 1) == [], "claimed and not committed"
    commit(catalog, 1, made.group_ids, generation)
    assert admit(catalog, 0, 1) == [], "version 1 is not loaded"
    assert len(admit(catalog, 1, 1)) == 4


@pytest.mark.parametrize("status", ["dropped", "failed", "pending"])
def test_what_no_step_will_train_soon_makes_room(catalog: Catalog, status: str) -> None:
    (lease, *_) = admit(catalog, 0, 0)
    finish(catalog, lease, status, queue="labels" if status == "pending" else None)
    assert len(admit(catalog, 0, 0)) == 1


def test_with_a_bound_of_0_nothing_is_given_before_the_last_version_is_loaded(catalog: Catalog) -> None:
    generation = take_over(catalog)
    for lease in admit(catalog, 0, 0):
        finish(catalog, lease)
    train(catalog, 1, generation, 0)
    assert admit(catalog, 0, 0) == []
    assert len(admit(catalog, 1, 0)) == B


def test_after_a_restart_there_is_no_more_room_than_before(place: Place) -> None:
    """AReaL #1388: with the version at 100, a batch of 8 and a bound of 2 there is room for 24 groups, not for 824."""
    catalog = place.open()
    generation = take_over(catalog)
    for step in range(1, 101):
        commit(catalog, step, [], generation)
    catalog.close()
    catalog = place.open()
    given = catalog.leases.admit("explorer", 1000, 100, Admission(8, 2), task_id_at, None)
    assert len(given) == 24
    catalog.close()


def test_what_a_dead_explorer_held_is_given_again_first_with_the_version_of_now(catalog: Catalog) -> None:
    admit(catalog, 0, 1, most=2, lease_s=OVER)
    commit(catalog, 1, [], take_over(catalog))
    given = admit(catalog, 1, 1, most=3, explorer="another")
    assert [(one.step, one.slot, one.epoch, one.policy_version) for one in given] == [(1, 0, 1, 1), (1, 1, 1, 1), (1, 2, 0, 1)]
    assert catalog.leases.fates() == {"expired": 2, "in_flight": 3}
    assert [one.epoch for one in admit(catalog, 1, 1)] == [0] * 5, "what was given again is not given a third time"


def test_the_end_of_the_task_set_is_kept(catalog: Catalog) -> None:
    assert [one.position for one in admit(catalog, 0, 4, end=6)] == [0, 1, 2, 3, 4, 5]
    assert admit(catalog, 0, 4, end=6) == []


def test_no_two_explorers_hold_the_same(catalog: Catalog) -> None:
    given = [one for name in ("a", "b", "a") for one in admit(catalog, 0, 4, most=3, explorer=name)]
    assert len({one.lease_id for one in given}) == len({one.position for one in given}) == 9


def in_order(under_way: list[Lease], rng: random.Random) -> Lease:
    return under_way.pop(0)


def at_random(under_way: list[Lease], rng: random.Random) -> Lease:
    return under_way.pop(rng.randrange(len(under_way)))


@pytest.mark.parametrize("bound", [0, 1, 3])
@pytest.mark.parametrize("order", [in_order, at_random])
def test_nothing_is_trained_too_late_and_only_stragglers_become_stale(
    catalog: Catalog, bound: int, order: Callable[[list[Lease], random.Random], Lease]
) -> None:
    """Explorers that load late, groups that come to nothing, and a trainer that takes what is ready."""
    rng, generation, under_way, loaded, step = random.Random(bound), take_over(catalog), [], 0, 1
    while step <= 12:
        loaded = rng.choice([loaded, step - 1])
        under_way += admit(catalog, loaded, bound, most=rng.randint(1, 6))
        for _ in range(rng.randint(0, len(under_way))):
            finish(catalog, order(under_way, rng), *rng.choice([("ready",), ("ready",), ("dropped", None)]))
        if len([one for one in rows(catalog, "groups", "group_id") if one["queue"] == "training"]) >= B:
            assert train(catalog, step, generation, bound) <= bound
            step += 1
    fates = {found["fate"] for found in rows(catalog, "fates", "lease_id")}
    assert ("stale" in fates) <= (order is at_random)
    assert sum(catalog.leases.fates().values()) == catalog.leases.num_issued()


def test_a_task_set_is_exhausted_when_nothing_of_it_can_come_any_more(catalog: Catalog) -> None:
    assert not catalog.leases.is_exhausted(None)
    lost, *_ = admit(catalog, 0, 4, end=2, lease_s=OVER)
    assert not catalog.leases.is_exhausted(2), "in flight"
    catalog.leases.expire_overdue()
    assert not catalog.leases.is_exhausted(2), "to be tried again"
    for again in admit(catalog, 0, 4, end=2):
        finish(catalog, again)
    assert catalog.leases.is_exhausted(2)
    assert not catalog.leases.is_exhausted(3), lost


def test_too_few_groups_are_no_claim_and_what_is_stale_is_so_all_the_same(catalog: Catalog) -> None:
    generation = take_over(catalog)
    old, *_ = admit(catalog, 0, 4, most=1)
    finish(catalog, old)
    assert catalog.claims.num_candidates(5) == 1
    assert catalog.claims.make(9, oldest(B), 8, 4, None, generation, least=B) is None
    assert catalog.claims.find(9) is None
    assert catalog.leases.fates() == {"stale": 1}
    assert catalog.claims.num_candidates(5) == 0
