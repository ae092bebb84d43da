"""Labels: added once, all or none, and what groups do that waited for them."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from rft_core.catalog import PRIORITY, REWARD, Applied, Catalog, Label, Reuse, schema
from rft_core.errors import TidemillError
from tests.catalog.conftest import Place
from tests.catalog.ledger import candidates, claim, commit, fill, oldest, overlay, rows, take_over, waiting

AWAITS = {"status": "pending", "size": 3, "rewarded": 1, "awaits": [["e-1"], ["e-2a", "e-2b"]], "due_in_s": 3600.0}
"""A group of three attempts: one has a reward, one of one row and one of two rows wait for theirs."""


def label(group_id: str, experience_id: str = "e-1", value: float = 1.0, key: str | None = None, field: str = REWARD) -> Label:
    return Label(key or f"{group_id} {experience_id} {field}", experience_id, group_id, field, value, "ada")


def add(catalog: Catalog, *labels: Label, ready_for: str = "training") -> Applied:
    return catalog.labels.add(labels, ready_for)


def make_due(catalog: Catalog) -> None:
    """Move all deadlines to a while ago."""
    with catalog._database.write() as connection:
        connection.execute(update(schema.groups).values(due_at=schema.groups.c.due_at - 7200.0))


def test_a_second_label_of_the_same_key_changes_nothing(catalog: Catalog) -> None:
    (group_id,) = fill(catalog, 1, [{}])
    first = label(group_id)
    assert add(catalog, first) == Applied(1, 0, ())
    state = catalog.segments.snapshot()
    assert add(catalog, first, replace(first, value=0.0)) == Applied(0, 2, ())
    assert catalog.segments.snapshot() == state
    assert catalog.labels.count() == 1
    assert catalog.labels.of_groups([group_id], REWARD) == {"e-1": [("ada", 1.0)]}


def test_of_two_labels_of_one_key_at_once_the_first_counts(catalog: Catalog) -> None:
    (group_id,) = fill(catalog, 1, [{}])
    first = label(group_id, value=0.25)
    assert add(catalog, first, replace(first), replace(first, value=0.75)) == Applied(1, 2, ())
    assert catalog.labels.of_groups([group_id], REWARD) == {"e-1": [("ada", 0.25)]}


def test_all_labels_are_added_or_none(catalog: Catalog) -> None:
    (group_id,) = fill(catalog, 1, [AWAITS])
    nothing: Any = None
    broken = replace(label(group_id, "e-2a"), value=nothing)
    with pytest.raises(Exception, match=r"(?i)not.null") as raised:
        add(catalog, label(group_id), broken)
    assert not isinstance(raised.value, TidemillError)  # a mistake of the caller stays what it is
    assert catalog.labels.count() == catalog.labels.newest([group_id], REWARD, at=99) == 0
    assert catalog.segments.snapshot() == 1


def test_labels_are_read_oldest_first_and_as_they_were_at_a_state(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{}, {}])
    add(catalog, label(ids[0], value=0.0, key="a"), label(ids[1], "e-9", value=0.5, key="b"))
    at = catalog.segments.snapshot()
    add(catalog, label(ids[0], value=1.0, key="c"), label(ids[0], key="d", field="tone"))
    assert catalog.labels.of_groups(ids, REWARD) == {"e-1": [("ada", 0.0), ("ada", 1.0)], "e-9": [("ada", 0.5)]}
    assert catalog.labels.of_groups(ids, REWARD, at) == {"e-1": [("ada", 0.0)], "e-9": [("ada", 0.5)]}
    assert catalog.labels.of_groups(ids, "tone") == {"e-1": [("ada", 1.0)]}
    now = catalog.segments.snapshot()
    asked = [(ids, REWARD, now), (ids, REWARD, at), (ids[1:], REWARD, now), (ids, "tone", now), (ids, "x", now)]
    assert [catalog.labels.newest(*question) for question in asked] == [4, 3, 3, 5, 0]


def test_a_group_goes_on_when_every_attempt_has_a_reward(catalog: Catalog) -> None:
    (group_id,) = fill(catalog, 1, [AWAITS])
    assert waiting(catalog) == []
    assert add(catalog, label(group_id, "e-2b")).completed == ()  # one row of an attempt is enough
    assert add(catalog, label(group_id, "e-2a")).completed == ()
    assert add(catalog, label(group_id, "e-1", field="tone")).completed == ()
    assert catalog.leases.fates() == {"pending": 1}
    assert add(catalog, label(group_id, "e-1")).completed == (group_id,)
    assert catalog.leases.fates() == {"ready": 1}
    assert waiting(catalog) == [group_id]
    assert [row["reason"] for row in rows(catalog, "fates")] == [""]
    assert add(catalog, label(group_id, "e-1", key="again")).completed == ()


def test_a_complete_group_is_shaped_first_in_a_run_that_shapes(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [AWAITS, AWAITS])
    labels = [label(group_id, row) for group_id in ids for row in ("e-1", "e-2a")]
    assert add(catalog, *labels, ready_for="shaping").completed == tuple(ids)
    assert catalog.segments.to_shape() == {"step-1-0": ids}
    overlay(catalog, "o", ids)
    assert waiting(catalog) == ids


def test_a_group_that_waits_for_training_is_shaped_again_when_its_reward_changes(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 3)
    overlay(catalog, "o", ids)
    claim(catalog, 1, take_over(catalog), count=1)
    assert add(catalog, *[label(group_id) for group_id in ids[:2]], ready_for="shaping").completed == ()
    assert catalog.segments.to_shape() == {"step-1-0": ids[1:2]}  # what is claimed already is trained as it is
    assert waiting(catalog) == ids[2:]
    add(catalog, label(ids[2], field="tone"), ready_for="shaping")
    assert waiting(catalog) == ids[2:]
    overlay(catalog, "again", ids[1:2], dropped={ids[1]: "op: why"})
    assert catalog.leases.fates() == {"dropped": 1, "ready": 2}


def test_a_group_that_gets_another_reward_while_it_is_shaped_is_shaped_again(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"queue": "shaping"}] * 3)
    add(catalog, label(ids[2]), ready_for="shaping")
    read_at = catalog.segments.snapshot()
    add(catalog, label(ids[0]), label(ids[1], field="tone"), ready_for="shaping")
    overlay(catalog, "o", ids, dropped={ids[0]: "op: why"}, read_at=read_at)
    assert (catalog.segments.to_shape(), waiting(catalog)) == ({"step-1-0": ids[:1]}, ids[1:])
    overlay(catalog, "again", ids[:1], read_at=catalog.segments.snapshot())
    assert waiting(catalog) == ids


def test_a_group_that_may_be_trained_again_is_shaped_again_too_and_stays_trained(catalog: Catalog) -> None:
    generation = take_over(catalog)
    ids = fill(catalog, 1, [{}])
    catalog.claims.make(1, oldest(1, Reuse(0.0, again_from=2)), 0, 9, None, generation)
    commit(catalog, 1, ids, generation)
    add(catalog, label(ids[0]), ready_for="shaping")
    assert (waiting(catalog), catalog.segments.to_shape()) == ([], {"step-1-0": ids})
    overlay(catalog, "o", ids, dropped={ids[0]: "op: why"})
    assert (waiting(catalog), catalog.segments.to_shape()) == ([], {})
    assert catalog.leases.fates() == {"trained": 1}


def test_a_label_of_a_group_that_waits_for_nothing_is_kept_and_moves_nothing(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"status": "failed"}, AWAITS])
    catalog.leases.end_run()
    assert add(catalog, label(ids[0]), label(ids[1], "e-1"), label(ids[1], "e-2a")) == Applied(3, 0, ())
    assert catalog.leases.fates() == {"failed": 1, "unused": 1}
    assert waiting(catalog) == []


def test_a_label_of_the_priority_sets_it(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{}] * 3)
    add(catalog, label(ids[0], value=0.5, field=PRIORITY), label(ids[1], value=2.0, field=PRIORITY), label(ids[2], value=9.0))
    assert [(one.group_id, one.priority) for one in candidates(catalog, "priority")] == [(ids[1], 2.0), (ids[0], 0.5), (ids[2], 0.0)]
    add(catalog, label(ids[1], value=-1.0, field=PRIORITY, key="again"))
    assert candidates(catalog, "priority")[-1].group_id == ids[1]
    add(catalog, label(ids[1], value=5.0, field=PRIORITY, key="again"))  # a repeated one is not applied again
    assert candidates(catalog, "priority")[-1].group_id == ids[1]
    catalog.labels.prioritise({ids[2]: 7.0})
    catalog.labels.prioritise({})
    assert candidates(catalog, "priority")[0].group_id == ids[2]


def test_nothing_is_settled_before_its_deadline(catalog: Catalog) -> None:
    fill(catalog, 1, [AWAITS, AWAITS | {"due_in_s": None}])
    assert catalog.labels.settle("drop", "training") == (0, 0)
    make_due(catalog)
    assert catalog.labels.settle("drop", "training") == (1, 0)
    assert catalog.leases.of_step(1) == {0: "dropped", 1: "pending"}


def test_groups_without_labels_at_the_deadline_are_dropped(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [AWAITS])
    add(catalog, label(ids[0]))
    make_due(catalog)
    assert catalog.labels.settle("drop", "training") == (1, 0)
    assert [(row["fate"], row["reason"]) for row in rows(catalog, "fates")] == [("dropped", "no label before its deadline")]
    assert add(catalog, label(ids[0], "e-2a")).completed == ()  # too late
    assert catalog.labels.settle("drop", "training") == (0, 0)
    assert catalog.leases.fates() == {"dropped": 1}


def test_the_attempts_that_have_a_reward_may_be_trained_at_the_deadline(catalog: Catalog) -> None:
    nobody = AWAITS | {"rewarded": 0}
    ids = fill(catalog, 1, [AWAITS, nobody, nobody, {"status": "pending", "due_in_s": 1.0}])
    add(catalog, label(ids[2], "e-2b"))
    make_due(catalog)
    assert catalog.labels.settle("train_rest", "training") == (2, 2)
    assert catalog.leases.of_step(1) == {0: "ready", 1: "dropped", 2: "ready", 3: "dropped"}
    assert waiting(catalog) == [ids[0], ids[2]]


def test_a_group_that_was_completed_is_not_settled(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [AWAITS])
    add(catalog, label(ids[0], "e-1"), label(ids[0], "e-2a"))
    make_due(catalog)
    assert catalog.labels.settle("drop", "training") == (0, 0)
    assert waiting(catalog) == ids


def test_what_people_write_can_be_stored_and_repeated(catalog: Catalog, place: Place) -> None:
    (group_id,) = fill(catalog, 1, [{}])
    strange = "a\x00b\udc80"
    said = Label(strange, strange, group_id, strange, 1.0, strange, strange)
    assert add(catalog, said) == Applied(1, 0, ())
    other = place.open()
    assert add(other, said) == Applied(0, 1, ())
    assert other.labels.of_groups([group_id], strange) == {"a\\x00b\\udc80": [("a\\x00b\\udc80", 1.0)]}
    other.close()


def test_more_labels_than_fit_into_one_statement_are_added(catalog: Catalog) -> None:
    (group_id,) = fill(catalog, 1, [{}])
    labels = [label(group_id, f"e-{number}") for number in range(1200)]
    assert add(catalog, *labels) == Applied(1200, 0, ())
    assert add(catalog, *labels) == Applied(0, 1200, ())
    state = catalog.segments.snapshot()
    assert catalog.labels.newest([group_id], REWARD, state) == state == 1201
