"""Heartbeats: they go on through what passes, and end when there is nothing left to keep."""

import threading
from collections.abc import Callable

import pytest

from rft_core.catalog import Catalog, heartbeat
from rft_core.errors import LostClaimError, RunError
from tests.catalog.ledger import OVER, lease

OFTEN_S = 0.002


class Beats:
    """Counts beats, and lets a test wait for them."""

    def __init__(self, outcome: Callable[[int], None] = lambda number: None) -> None:
        self.count = 0
        self._outcome = outcome
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()
        self._outcome(self.count)

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, timeout=30)


def test_it_beats_until_the_block_ends() -> None:
    beats = Beats()
    with heartbeat(beats, OFTEN_S):
        beats.wait_for(3)
    counted = beats.count
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
    assert beats.count == counted


def test_it_ends_with_a_block_that_fails() -> None:
    with pytest.raises(ValueError, match="halfway"), heartbeat(Beats(), OFTEN_S):
        raise ValueError("halfway")
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_catalog_that_does_not_answer_for_a_moment_is_asked_again() -> None:
    def fail_twice(number: int) -> None:
        if number < 3:
            raise RunError("the catalog can't be used")

    beats = Beats(fail_twice)
    with heartbeat(beats, OFTEN_S):
        beats.wait_for(5)


def test_a_lost_claim_ends_the_beats_and_not_the_block() -> None:
    def lose(number: int) -> None:
        raise LostClaimError("process 2 took over this run as its trainer")

    beats = Beats(lose)
    with heartbeat(beats, OFTEN_S):
        beats.wait_for(1)
        for thread in [thread for thread in threading.enumerate() if thread.name == "heartbeat"]:
            thread.join(timeout=30)
            assert not thread.is_alive()
    assert beats.count == 1


def test_it_keeps_the_leases_of_an_explorer_that_works(catalog: Catalog) -> None:
    held = lease(catalog, 1, 2, lease_s=OVER)

    def renew(number: int) -> None:
        catalog.leases.renew("explorer")

    beats = Beats(renew)
    with heartbeat(beats, OFTEN_S):
        beats.wait_for(2)
    assert catalog.leases.expire_overdue() == 0
    assert catalog.leases.open(1) == held
