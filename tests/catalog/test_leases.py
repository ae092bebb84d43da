"""Leases: the cursor never rolls back, what expired is issued again in its slot, and every fate is known."""

import random
from pathlib import Path

import pytest

from rft_core.catalog import Catalog
from rft_core.errors import RunError
from tests.catalog.ledger import claim, commit, lease, store, task_id_at


def test_leases_take_slots_and_positions_in_order(catalog: Catalog) -> None:
    first, second = lease(catalog, 1, 3), lease(catalog, 2, 2)
    assert [(one.step, one.slot, one.position, one.task_id, one.epoch) for one in [*first, *second]] == [
        (1, 0, 0, "task-0", 0),
        (1, 1, 1, "task-1", 0),
        (1, 2, 2, "task-2", 0),
        (2, 0, 3, "task-3", 0),
        (2, 1, 4, "task-0", 0),
    ]


def test_a_second_issue_for_a_step_takes_the_next_slots(catalog: Catalog) -> None:
    lease(catalog, 1, 2)
    assert [(one.slot, one.position) for one in lease(catalog, 1, 2)] == [(2, 2), (3, 3)]


def test_a_task_that_is_leased_twice_in_a_step_has_two_leases(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 6)
    assert issued[0].task_id == issued[4].task_id
    assert len({one.lease_id for one in issued}) == 6


def test_the_same_run_has_the_same_lease_ids(tmp_path: Path) -> None:
    ids = []
    for name in ("a", "b"):
        catalog = Catalog(f"sqlite:///{tmp_path / name}.db")
        issued = [*lease(catalog, 1, 3)]
        catalog.leases.expire_open("killed")
        ids.append([one.lease_id for one in [*issued, *lease(catalog, 1, 0), *lease(catalog, 2, 2)]])
        catalog.close()
    assert ids[0] == ids[1]


def test_the_end_of_the_task_set_is_honoured(catalog: Catalog) -> None:
    assert len(lease(catalog, 1, 3, end=5)) == 3
    assert [one.position for one in lease(catalog, 2, 3, end=5)] == [3, 4]
    assert lease(catalog, 3, 3, end=5) == []
    # More epochs on a resume go on from there; fewer don't give anything back.
    assert lease(catalog, 3, 3, end=4) == []
    assert [one.position for one in lease(catalog, 3, 3, end=6)] == [5]


def test_what_expired_is_issued_again_in_its_slot_and_the_cursor_stays(catalog: Catalog) -> None:
    first = lease(catalog, 1, 3)
    assert catalog.leases.expire_open("killed") == 3
    assert catalog.leases.expire_open("killed") == 0
    again = lease(catalog, 1, 0)
    assert [(one.slot, one.position, one.task_id) for one in again] == [(one.slot, one.position, one.task_id) for one in first]
    assert [one.epoch for one in again] == [1, 1, 1]
    assert not {one.lease_id for one in again} & {one.lease_id for one in first}
    assert lease(catalog, 1, 0) == []
    assert [one.position for one in lease(catalog, 2, 1)] == [3]
    catalog.leases.expire_open("killed again")
    assert [(one.slot, one.epoch) for one in lease(catalog, 1, 1)] == [(0, 2), (1, 2), (2, 2), (3, 0)]


def test_what_expired_is_issued_again_beyond_the_end(catalog: Catalog) -> None:
    lease(catalog, 1, 3, end=3)
    catalog.leases.expire_open("killed")
    assert [(one.slot, one.position) for one in lease(catalog, 1, 2, end=3)] == [(0, 0), (1, 1), (2, 2)]


def test_only_what_expired_of_the_same_step_is_issued_again(catalog: Catalog) -> None:
    first = lease(catalog, 1, 2)
    store(catalog, "a", first)
    lease(catalog, 1, 1)
    lease(catalog, 2, 1)
    catalog.leases.expire_open("killed")
    assert [(one.slot, one.epoch) for one in lease(catalog, 1, 0)] == [(2, 1)]
    assert catalog.leases.of_step(1) == {0: "ready", 1: "ready", 2: "in_flight"}
    assert catalog.leases.of_step(2) == {0: "expired"}


def test_a_rejected_rollout_is_tried_again_in_its_slots(catalog: Catalog) -> None:
    first = lease(catalog, 1, 2)
    assert catalog.leases.num_to_reissue(1) == 0
    store(catalog, "a", first, ["failed", "failed"], rejected="3 of 4 attempts failed")
    assert catalog.leases.fates() == {"failed": 2}
    assert {row[-1] for row in catalog.relation("fates")[1]} == {"3 of 4 attempts failed"}
    assert catalog.leases.num_to_reissue(1) == 2
    again = lease(catalog, 1, 0)
    assert [(one.slot, one.task_id, one.epoch) for one in again] == [(0, "task-0", 1), (1, "task-1", 1)]
    assert catalog.leases.num_to_reissue(1) == 0
    # A group that failed by itself is not.
    store(catalog, "b", again, ["ready", "failed"])
    assert lease(catalog, 1, 0) == []
    assert catalog.leases.fates() == {"failed": 3, "ready": 1}


def test_the_step_that_took_the_last_task_is_known(catalog: Catalog) -> None:
    lease(catalog, 1, 3, end=5)
    assert catalog.leases.exhausted_at(5) is None
    lease(catalog, 2, 3, end=5)
    assert catalog.leases.exhausted_at(5) == 2
    assert catalog.leases.exhausted_at(6) is None
    assert catalog.leases.exhausted_at(None) is None
    # Also while that step is done once more after a kill.
    catalog.leases.expire_open("killed")
    lease(catalog, 1, 0, end=5)
    assert catalog.leases.exhausted_at(5) == 2


def test_a_cursor_belongs_to_one_task_set(catalog: Catalog) -> None:
    catalog.leases.bind("a")
    lease(catalog, 1, 3)
    catalog.leases.bind("a")
    with pytest.raises(RunError, match="the task set is another one than this run began with; restore its file"):
        catalog.leases.bind("b")
    assert [one.position for one in lease(catalog, 2, 1)] == [3]


def test_an_open_lease_is_found_by_its_step(catalog: Catalog) -> None:
    issued = lease(catalog, 1, 2)
    lease(catalog, 2, 1)
    assert catalog.leases.open(1) == issued
    store(catalog, "a", issued[:1])
    assert catalog.leases.open(1) == issued[1:]


def test_a_task_set_that_fails_leases_nothing(catalog: Catalog) -> None:
    def broken(position: int) -> str:
        if position == 1:
            raise ValueError("row 2 is malformed")
        return "task"

    with pytest.raises(ValueError, match="row 2"):
        catalog.leases.issue(1, 3, "explorer", broken, None)
    assert catalog.leases.num_issued() == 0
    assert [one.position for one in lease(catalog, 1, 1)] == [0]


def test_the_end_of_a_run_leaves_nothing_open(catalog: Catalog) -> None:
    store(catalog, "a", lease(catalog, 1, 4), ["ready", "pending", "failed", "timed_out"])
    lease(catalog, 2, 1)
    for _ in range(2):
        catalog.leases.end_run()
        assert catalog.leases.fates() == {"failed": 1, "timed_out": 1, "unused": 3}
    reasons = {row[-1] for row in catalog.relation("fates")[1] if row[-2] == "unused"}
    assert reasons == {"the run ended"}


@pytest.mark.parametrize("seed", range(4))
def test_fates_add_up_whatever_happens(seed: int, catalog: Catalog) -> None:
    rng = random.Random(seed)
    generation = catalog.claims.take_over("trainer")
    for step in range(1, 8):
        issued = lease(catalog, step, rng.randint(1, 4))
        while rng.random() < 0.5:
            catalog.leases.expire_open("killed")
            issued = lease(catalog, step, rng.randint(0, 2))
        if issued:
            store(catalog, f"step-{step}", issued, rng.choices(["ready", "pending", "failed", "timed_out"], k=len(issued)))
        ready = [one.group_id for one in catalog.claims.ready()]
        rng.shuffle(ready)
        claim(catalog, step, ready[:2], generation, stale=ready[2:3])
        if rng.random() < 0.8:
            commit(catalog, step, ready[:2], generation)
        assert sum(catalog.leases.fates().values()) == catalog.leases.num_issued()
    catalog.leases.end_run()
    columns, rows = catalog.relation("fates")
    fates = [row[list(columns).index("fate")] for row in rows]
    assert sum(catalog.leases.fates().values()) == catalog.leases.num_issued() == len(fates)
    assert set(fates) <= {"trained", "failed", "timed_out", "stale", "expired", "unused"}
    assert len({row[0] for row in rows}) == len(rows)


def test_the_ledger_is_what_a_second_process_finds(catalog: Catalog, tmp_path: Path) -> None:
    issued = lease(catalog, 1, 2)
    other = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    assert other.leases.open(1) == issued
    assert [one.task_id for one in lease(other, 2, 1)] == [task_id_at(2)]
    other.close()
