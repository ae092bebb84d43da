"""One trainer at a time: the second is refused while the first may be at work, and takes over when it can't be."""

import re

import pytest
from sqlalchemy import update

from rft_core.catalog import Catalog, schema
from rft_core.catalog.clock import LONGEST_LEASE_S
from rft_core.errors import LostClaimError, RunError
from rft_core.processes import Process, this_process
from tests.catalog.ledger import OVER, replace_trainer, rows, take_over
from tests.children import leave_dead, line, started

CHILD = """
import sys
from rft_core.processes import this_process
process = this_process()
print(process.name, process.identity, sep="\\n", flush=True)
sys.stdin.read()
"""


def test_a_second_trainer_is_refused_and_told_whom_to_stop(catalog: Catalog) -> None:
    assert catalog.trainers.holder() is None
    assert take_over(catalog, "process 1 on mill") == 1
    move(catalog, started_at=-9000.0, seen_at=-2000.0, leased_until=+400.0)
    with pytest.raises(RunError) as refused:
        take_over(catalog, "process 2")
    said = re.fullmatch(
        r"this run is being trained by process 1 on mill, for (\d+) s, last heard of (\d+) s ago; "
        r"stop it, or wait: if it is dead its lease is over in (\d+) s",
        str(refused.value),
    )
    assert said is not None, refused.value
    assert [int(seconds) for seconds in said.groups()] == pytest.approx([9000, 2000, 460], abs=60)
    holder = catalog.trainers.holder()
    assert holder is not None
    name, seen_s_ago = holder
    assert name == "process 1 on mill"
    assert seen_s_ago == pytest.approx(2000.0, abs=60.0)
    catalog.trainers.renew(1)  # it was not hurt by that


def test_another_takes_over_when_the_lease_is_over(catalog: Catalog) -> None:
    assert replace_trainer(catalog, "the second") == (1, 2)
    with pytest.raises(LostClaimError, match="the second took over this run as its trainer; let that one go on, or stop it first"):
        catalog.trainers.renew(1)
    holder = catalog.trainers.holder()
    assert holder is not None
    assert holder[0] == "the second"


def test_a_heartbeat_keeps_the_run(catalog: Catalog) -> None:
    generation = take_over(catalog, lease_s=OVER)
    assert catalog.trainers.holder() is None
    catalog.trainers.renew(generation)
    assert catalog.trainers.holder() is not None
    with pytest.raises(RunError):
        take_over(catalog)


def test_a_trainer_that_ended_leaves_the_run_to_the_next(catalog: Catalog) -> None:
    generation = take_over(catalog)
    catalog.trainers.release(generation)
    assert catalog.trainers.holder() is None
    assert take_over(catalog) == generation + 1


def test_a_replaced_trainer_does_not_end_the_one_that_replaced_it(catalog: Catalog) -> None:
    old, _ = replace_trainer(catalog, "the second")
    catalog.trainers.release(old)
    with pytest.raises(RunError, match="trained by the second"):
        take_over(catalog)


def test_a_trainer_of_this_machine_is_replaced_at_once_when_it_is_dead(catalog: Catalog) -> None:
    with started(CHILD) as child:
        first = Process(line(child), line(child))
        assert catalog.trainers.take_over(first) == 1
        with pytest.raises(RunError, match=f"this run is being trained by process {child.pid} on "):
            catalog.trainers.take_over(this_process())
        leave_dead(child)
        assert catalog.trainers.holder() is None
        assert catalog.trainers.take_over(this_process()) == 2


def test_a_trainer_that_nobody_can_see_is_waited_for(catalog: Catalog) -> None:
    take_over(catalog, "process 1 of another machine")
    with pytest.raises(RunError, match="process 1 of another machine"):
        catalog.trainers.take_over(this_process())


@pytest.mark.parametrize(("ahead_s", "keeps"), [(LONGEST_LEASE_S - 5.0, True), (LONGEST_LEASE_S + 5.0, False)])
def test_a_clock_that_jumped_back_keeps_no_run_for_ever(catalog: Catalog, ahead_s: float, keeps: bool) -> None:
    take_over(catalog, lease_s=0.0)
    move(catalog, leased_until=ahead_s)
    assert (catalog.trainers.holder() is not None) == keeps
    if keeps:
        with pytest.raises(RunError):
            take_over(catalog)
    else:
        assert take_over(catalog) == 2


def test_a_lease_of_one_length_is_respected_by_trainers_with_another(catalog: Catalog) -> None:
    take_over(catalog, "the patient", lease_s=LONGEST_LEASE_S)
    with pytest.raises(RunError, match="the patient"):
        take_over(catalog, "the quick", lease_s=1.0)
    with pytest.raises(ValueError, match="at most 600 s are right"):
        catalog.trainers.renew(1, LONGEST_LEASE_S + 1)


def test_names_of_any_text_can_be_written_down(catalog: Catalog) -> None:
    take_over(catalog, "a\x00b\udc80")
    assert [(row["process"], row["identity"]) for row in rows(catalog, "trainers")] == [
        ("a\\x00b\\udc80", "elsewhere|a\\x00b\\udc80|1"),
    ]


def move(catalog: Catalog, **by_s: float) -> None:
    """Move what is written of the times of the trainer."""
    table = schema.trainers
    with catalog._database.write() as connection:
        connection.execute(update(table).values({name: table.c[name] + seconds for name, seconds in by_s.items()}))
