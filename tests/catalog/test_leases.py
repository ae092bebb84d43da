"""Leases: the cursor never rolls back, what expired is issued again in its slot, and every fate is known."""

import threading
import time

import pytest
from sqlalchemy import update

from rft_core.catalog import Catalog, schema
from rft_core.catalog.clock import LONGEST_LEASE_S
from rft_core.errors import LostClaimError, RunError
from rft_core.types import digest
from tests.catalog.conftest import Place
from tests.catalog.ledger import OVER, claim, commit, group_ids, lease, replace_trainer, rows, store, take_over, task_id_at, waiting


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


def test_the_same_run_has_the_same_lease_ids(catalog: Catalog) -> None:
    first = lease(catalog, 1, 2)
    catalog.leases.take_back("explorer", "killed")
    assert [one.lease_id for one in [*first, *lease(catalog, 1, 0), *lease(catalog, 2, 1)]] == [
        digest("lease", *named)
        for named in (("task-0", 1, 0, 0), ("task-1", 1, 1, 0), ("task-0", 1, 0, 1), ("task-1", 1, 1, 1), ("task-2", 2, 0, 0))
    ]


def test_the_end_of_the_task_set_is_honoured(catalog: Catalog) -> None:
    assert len(lease(catalog, 1, 3, end=5)) == 3
    assert [one.position for one in lease(catalog, 2, 3, end=5)] == [3, 4]
    assert lease(catalog, 3, 3, end=5) == []
    # More epochs on a resume go on from there; fewer don't give anything back.
    assert lease(catalog, 3, 3, end=4) == []
    assert [one.position for one in lease(catalog, 3, 3, end=6)] == [5]


def test_what_was_taken_back_is_issued_again_in_its_slot_and_the_cursor_stays(catalog: Catalog) -> None:
    first = lease(catalog, 1, 3)
    assert catalog.leases.take_back("explorer", "killed") == 3
    assert catalog.leases.take_back("explorer", "killed") == 0
    again = lease(catalog, 1, 0)
    assert [(one.slot, one.position, one.task_id) for one in again] == [(one.slot, one.position, one.task_id) for one in first]
    assert [one.epoch for one in again] == [1, 1, 1]
    assert not {one.lease_id for one in again} & {one.lease_id for one in first}
    assert lease(catalog, 1, 0) == []
    assert [one.position for one in lease(catalog, 2, 1)] == [3]
    catalog.leases.take_back("explorer", "killed again")
    assert [(one.slot, one.epoch) for one in lease(catalog, 1, 1)] == [(0, 2), (1, 2), (2, 2), (3, 0)]


def test_only_as_much_as_is_wanted_is_tried_again_at_once(catalog: Catalog) -> None:
    lease(catalog, 1, 3)
    catalog.leases.take_back("explorer", "killed")
    tried = [catalog.leases.issue(1, 0, "explorer", task_id_at, None, most_again=most) for most in (2, 0, 2)]
    assert [[(one.slot, one.epoch) for one in some] for some in tried] == [[(0, 1), (1, 1)], [], [(2, 1)]]


def test_only_what_one_explorer_holds_is_taken_back(catalog: Catalog) -> None:
    lease(catalog, 1, 2, explorer="a")
    kept = lease(catalog, 1, 1, explorer="b")
    assert catalog.leases.take_back("a", "its process ended") == 2
    assert catalog.leases.open(1) == kept == catalog.leases.open(1, "b")
    assert catalog.leases.open(1, "a") == []
    assert {row["reason"] for row in rows(catalog, "leases") if row["fate"] == "expired"} == {"its process ended"}


def test_a_dead_explorers_leases_expire_and_are_issued_to_another(catalog: Catalog) -> None:
    dead = lease(catalog, 1, 2, explorer="dead", lease_s=OVER)
    assert catalog.leases.num_overdue() == 2
    alive = lease(catalog, 2, 1, explorer="alive")
    again = lease(catalog, 1, 0, explorer="alive")
    assert [(one.slot, one.task_id, one.epoch) for one in again] == [(one.slot, one.task_id, 1) for one in dead]
    assert (catalog.leases.open(1, "alive"), catalog.leases.open(2, "alive")) == (again, alive)
    assert catalog.leases.num_overdue() == 0
    assert catalog.leases.fates() == {"expired": 2, "in_flight": 3}
    reasons = {row["reason"] for row in rows(catalog, "fates") if row["fate"] == "expired"}
    assert reasons == {"its explorer was not heard of any more"}


def test_leases_of_any_step_expire_when_tasks_are_leased_for_another(catalog: Catalog) -> None:
    lease(catalog, 1, 2, lease_s=OVER)
    lease(catalog, 2, 1)
    assert catalog.leases.fates() == {"expired": 2, "in_flight": 1}
    assert catalog.leases.num_to_reissue(1) == 2


def test_a_lease_is_over_when_its_time_has_passed(catalog: Catalog) -> None:
    lease(catalog, 1, 1, lease_s=0.05)
    time.sleep(0.1)
    assert catalog.leases.expire_overdue() == 1


def test_leases_go_by_the_clock_of_the_database(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    lease(catalog, 1, 1, lease_s=60.0)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert catalog.leases.expire_overdue() == 0
    monkeypatch.setattr(time, "time", lambda: 0.0)
    lease(catalog, 2, 1, lease_s=OVER)
    assert catalog.leases.expire_overdue() == 1


def test_a_heartbeat_keeps_what_its_explorer_holds(catalog: Catalog) -> None:
    held = lease(catalog, 1, 3, explorer="alive", lease_s=OVER)
    assert catalog.leases.renew("somebody else") == 0
    assert catalog.leases.renew("alive") == 3
    assert catalog.leases.expire_overdue() == 0
    store(catalog, "a", held[:1])
    assert catalog.leases.renew("alive", OVER) == 2
    assert catalog.leases.expire_overdue() == 2


def test_a_clock_that_jumped_back_keeps_no_lease_for_ever(catalog: Catalog) -> None:
    held = lease(catalog, 1, 2)
    table = schema.leases.c
    with catalog._database.write() as connection:
        at_most = catalog.history.now() + LONGEST_LEASE_S
        for one, until in zip(held, (at_most - 1.0, at_most + 3600.0), strict=True):
            connection.execute(update(schema.leases).where(table.lease_id == one.lease_id).values(leased_until=until))
    assert catalog.leases.expire_overdue() == 1
    assert catalog.leases.open(1) == held[:1]


def test_no_lease_may_last_longer_than_can_be_told_from_a_jump_of_the_clock(catalog: Catalog) -> None:
    with pytest.raises(ValueError, match="a lease of 601.0 s; at most 600 s are right"):
        lease(catalog, 1, 1, lease_s=LONGEST_LEASE_S + 1)
    assert catalog.leases.num_issued() == 0
    # However long the leases of others are, nobody takes them for such a jump.
    lease(catalog, 1, 1, explorer="patient", lease_s=LONGEST_LEASE_S)
    lease(catalog, 1, 1, explorer="quick", lease_s=1.0)
    assert catalog.leases.open(1, "patient")


def test_what_expired_is_issued_again_beyond_the_end(catalog: Catalog) -> None:
    lease(catalog, 1, 3, end=3)
    catalog.leases.take_back("explorer", "killed")
    assert [(one.slot, one.position) for one in lease(catalog, 1, 2, end=3)] == [(0, 0), (1, 1), (2, 2)]


def test_only_what_expired_of_the_same_step_is_issued_again(catalog: Catalog) -> None:
    first = lease(catalog, 1, 2)
    store(catalog, "a", first)
    lease(catalog, 1, 1)
    lease(catalog, 2, 1)
    catalog.leases.take_back("explorer", "killed")
    assert [(one.slot, one.epoch) for one in lease(catalog, 1, 0)] == [(2, 1)]
    assert catalog.leases.of_step(1) == {0: "ready", 1: "ready", 2: "in_flight"}
    assert catalog.leases.of_step(2) == {0: "expired"}


def test_a_rejected_rollout_is_tried_again_in_its_slots(catalog: Catalog) -> None:
    first = lease(catalog, 1, 2)
    assert catalog.leases.num_to_reissue(1) == 0
    store(catalog, "a", first, ["failed", "failed"], rejected="3 of 4 attempts failed")
    assert catalog.leases.fates() == {"failed": 2}
    assert {row["reason"] for row in rows(catalog, "fates")} == {"3 of 4 attempts failed"}
    assert catalog.leases.num_to_reissue(1) == 2
    again = lease(catalog, 1, 0)
    assert [(one.slot, one.task_id, one.epoch) for one in again] == [(0, "task-0", 1), (1, "task-1", 1)]
    assert catalog.leases.num_to_reissue(1) == 0
    # A group that failed by itself is not.
    store(catalog, "b", again, ["ready", "failed"])
    assert lease(catalog, 1, 0) == []
    assert catalog.leases.fates() == {"failed": 3, "ready": 1}


def test_a_replaced_trainer_is_given_nothing(catalog: Catalog) -> None:
    old, new = replace_trainer(catalog, "the second")
    with pytest.raises(LostClaimError, match="the second took over this run as its trainer"):
        catalog.leases.issue(1, 1, "explorer-0", str, None, generation=old)
    assert catalog.leases.num_issued() == 0
    assert len(catalog.leases.issue(1, 1, "explorer-0", str, None, generation=new)) == 1


def test_the_step_that_took_the_last_task_is_known(catalog: Catalog) -> None:
    lease(catalog, 1, 3, end=5)
    assert catalog.leases.exhausted_at(5) is None
    lease(catalog, 2, 3, end=5)
    assert catalog.leases.exhausted_at(5) == 2
    assert catalog.leases.exhausted_at(6) is None
    assert catalog.leases.exhausted_at(None) is None
    # Also while that step is done once more after a kill.
    catalog.leases.take_back("explorer", "killed")
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
    assert [catalog.leases.end_run() for _ in range(2)] == [1, 0]
    assert catalog.leases.fates() == {"failed": 1, "timed_out": 1, "unused": 3}
    assert {row["reason"] for row in rows(catalog, "fates") if row["fate"] == "unused"} == {"the run ended"}
    assert waiting(catalog) == []


def test_a_run_that_ended_may_go_on_and_redo_its_last_step(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = group_ids(lease(catalog, 1, 2))
    store(catalog, "a", catalog.leases.open(1))
    claim(catalog, 1, generation)
    catalog.leases.end_run()
    assert catalog.leases.fates() == {"unused": 2}
    commit(catalog, 1, ids, generation)
    lease(catalog, 2, 1)
    assert catalog.leases.fates() == {"in_flight": 1, "trained": 2}
    assert catalog.audit.breaches(None) == []


def test_the_ledger_is_what_a_second_process_finds(catalog: Catalog, place: Place) -> None:
    issued = lease(catalog, 1, 2)
    other = place.open()
    assert other.leases.open(1) == issued
    assert [one.task_id for one in lease(other, 2, 1)] == [task_id_at(2)]
    other.close()


def test_explorers_never_hold_the_same_lease(catalog: Catalog, place: Place) -> None:
    names = ("a", "b", "c")
    held: dict[str, list[str]] = {name: [] for name in names}

    def explore(name: str) -> None:
        mine = place.open()
        for turn in range(8):
            held[name] += [one.lease_id for one in lease(mine, 1, 1, explorer=name, lease_s=OVER if turn % 2 else 60.0)]
        mine.close()

    explorers = [threading.Thread(target=explore, args=(name,)) for name in names]
    for explorer in explorers:
        explorer.start()
    for explorer in explorers:
        explorer.join()
    leases = rows(catalog, "leases", "slot", "epoch")
    assert sorted(row["position"] for row in leases if row["epoch"] == 0) == list(range(24))
    for name in names:
        assert sorted(held[name]) == sorted(row["lease_id"] for row in leases if row["explorer"] == name)
    assert catalog.audit.breaches(None) == []


def test_names_and_task_ids_of_any_text_can_be_leased_and_found(catalog: Catalog) -> None:
    strange = "a\x00b\udc80"
    (one,) = catalog.leases.issue(1, 1, strange, lambda position: strange, None)
    assert one.task_id == "a\\x00b\\udc80"
    assert catalog.leases.open(1, strange) == [one]
    assert catalog.leases.renew(strange) == 1
    assert catalog.leases.take_back(strange, strange) == 1
    (again,) = catalog.leases.issue(1, 0, strange, lambda position: strange, None)
    assert (again.task_id, again.epoch) == (one.task_id, 1)
    assert [(row["task_id"], row["explorer"], row["reason"]) for row in rows(catalog, "leases", "epoch")] == [
        (one.task_id, one.task_id, one.task_id),
        (one.task_id, one.task_id, ""),
    ]
