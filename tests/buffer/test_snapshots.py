"""Pinned states of the table: they answer as they did, whatever came since, for as long as they are pinned."""

from typing import Any

import pytest

from rft_core.buffer import STATE_VIEWS, VIEWS, Questions
from rft_core.errors import QueryError, SegmentError
from rft_core.types import Source
from tests.buffer.compacting import check_files, fill, squeeze
from tests.buffer.table import Table, append_each, group_id

ROWS = (
    "select e.*, l.author, l.value "
    "from (select columns(lambda c: c <> 'fate') from experiences) e left join labels l using (experience_id) "
    "order by experience_id, l.sequence"
)
"""Everything that a state holds of experiences."""


def at(table: Table, sequence: int) -> bytes:
    """The answer at a state, as bytes of Arrow."""
    questions = Questions(table.storage, table.catalog, "p", at=sequence)
    found = questions.ask(ROWS).combine_chunks()
    assert questions.damaged == {}
    return repr(found.to_pylist()).encode()


def go_on(table: Table) -> None:
    """More rows, labels of old and new ones, and everything shaped again."""
    leases = append_each(table, "more", [(1, 0), (0, 1)], step=20)
    for lease in leases:
        table.label({row.experience_id: 0.125 for row in table.store.groups([group_id(lease)])[0].rows})
    old = table.ask("select experience_id from experiences where step = 1 order by 1")
    table.label({row["experience_id"]: 0.625 for row in old}, author="bob")
    table.shape(factor=4.0)
    table.commit(table.claim(20, 1), 1)


def test_a_pinned_state_answers_as_it_did_until_it_is_let_go(shaping: Table) -> None:
    fill(shaping)
    sequence = shaping.catalog.history.pin("paper")
    pinned = at(shaping, sequence)
    go_on(shaping)
    assert at(shaping, sequence) == pinned != at(shaping, shaping.catalog.segments.snapshot())
    for _ in range(2):
        squeeze(shaping)
        assert at(shaping, sequence) == pinned
        assert at(shaping, shaping.catalog.history.named("paper")) == pinned
    check_files(shaping)
    old = [uri for uri in shaping.files("segments") | shaping.files("overlays") if "compact" not in uri]
    assert len(old) == 3 + 6
    shaping.catalog.history.unpin("paper")
    assert squeeze(shaping).deleted == 9
    assert len(shaping.files("segments")) == len(shaping.files("overlays")) == 1
    check_files(shaping)


@pytest.mark.parametrize("view", STATE_VIEWS)
def test_every_view_of_a_state_answers_as_it_did(view: str, shaping: Table) -> None:
    fill(shaping)
    append_each(shaping, "expert", [(1, 0)], step=9, source=Source.EXPERT)
    sequence = shaping.catalog.history.pin("paper")
    question = f"select columns(lambda c: c <> 'fate') from {view} order by all"
    then = shaping.ask(question)
    go_on(shaping)
    assert shaping.ask(question, at=sequence) == then != []
    assert shaping.ask(question) != then or view == "supervised"


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in STATE_VIEWS])
def test_a_view_that_is_known_as_of_now_only_is_no_part_of_a_state(view: str, shaping: Table) -> None:
    fill(shaping, steps=1)
    sequence = shaping.catalog.history.pin("paper")
    assert shaping.ask(f"select count(*) as {view} from labels", at=sequence) == [{view: 1}]
    for question in (f"select * from {view}", f"select count(*) from experiences, {view}"):
        with pytest.raises(QueryError, match=f"{view} does not exist(.|\n)*a pinned state has the views experiences, attempts, labels, "):
            shaping.ask(question, at=sequence)


def test_a_state_knows_no_fates(shaping: Table) -> None:
    fill(shaping, steps=1)
    sequence = shaping.catalog.history.pin("paper")
    for view in ("experiences", "attempts", "supervised"):
        assert "fate" not in Questions(shaping.storage, shaping.catalog, "p", at=sequence).ask(f"from {view}").column_names
        with pytest.raises(QueryError, match=r'"fate" not found(.|\n)*none of them has `fate`: all else is known as it is now only'):
            shaping.ask(f"select fate from {view}", at=sequence)


def test_a_state_whose_files_are_gone_is_refused_and_not_half_answered(shaping: Table) -> None:
    claims = fill(shaping)
    sequence = shaping.catalog.segments.snapshot()
    now = shaping.ask(ROWS)
    squeeze(shaping)
    with pytest.raises(QueryError, match=f"the table can't be shown as it was at {sequence}: 3 of its files were merged or let go since"):
        at(shaping, sequence)
    questions = Questions(shaping.storage, shaping.catalog, "p", at=sequence)
    for _ in range(2):
        with pytest.raises(QueryError, match="pin a state for as long as it is needed"):
            questions.ask("select count(*) from experiences")
    assert questions.ask("select count(*) as n from labels").to_pylist() == [{"n": 3}]
    assert shaping.ask(ROWS) == now
    # What operators made of a batch is not taken for nothing.
    claim = claims[0]
    with pytest.raises(SegmentError, match=f"what operators made of group {claim.group_ids[0]} at .* was deleted"):
        shaping.store.groups(claim.group_ids, "p", claim.snapshot["sequence"])
    assert len(shaping.store.groups(claim.group_ids, "p")) == 2


def test_a_state_before_anything_was_shaped_has_no_overlay(shaping: Table) -> None:
    (lease,) = append_each(shaping, "a", [(1, 0)])
    sequence = shaping.catalog.history.pin("raw")
    shaping.shape(factor=2.0)
    assert shaping.store.groups([group_id(lease)], "p", sequence)[0].shaped == {}
    assert len(shaping.store.groups([group_id(lease)], "p")[0].shaped) == 2
    assert shaping.ask("select distinct shaped_reward from experiences", at=sequence) == [{"shaped_reward": None}]


def test_states_are_of_rows_labels_and_overlays(shaping: Table) -> None:
    states: list[int] = []

    def note() -> None:
        states.append(shaping.catalog.segments.snapshot())

    note()
    leases = append_each(shaping, "a", [(1, 0)])
    note()
    row = shaping.store.groups([group_id(leases[0])])[0].rows[0]
    shaping.label({row.experience_id: 0.5})
    note()
    shaping.shape(factor=2.0)
    note()
    append_each(shaping, "b", [(1, 0)], step=2)
    question = "select step, labelled_reward, shaped_reward from experiences where attempt = 0 order by step"
    seen: list[Any] = [[tuple(found.values()) for found in shaping.ask(question, at=state)] for state in states]
    assert seen == [[], [(1, None, None)], [(1, 0.5, None)], [(1, 0.5, 1.0)]]
    assert len(shaping.ask(question)) == 2


def test_several_pins_keep_what_any_of_them_needs(shaping: Table) -> None:
    fill(shaping, steps=1)
    first = shaping.catalog.history.pin("first")
    go_on(shaping)
    second = shaping.catalog.history.pin("second")
    before = at(shaping, first), at(shaping, second)
    squeeze(shaping)
    shaping.catalog.history.unpin("first")
    squeeze(shaping)
    assert at(shaping, second) == before[1]
    shaping.catalog.history.unpin("second")
    squeeze(shaping)
    with pytest.raises(QueryError, match="can't be shown"):
        at(shaping, second)


def test_a_name_keeps_its_state_and_an_unknown_one_is_refused(table: Table) -> None:
    first = table.catalog.history.pin("paper")
    append_each(table, "a", [(1, 0)])
    assert table.catalog.history.pin("paper") == first
    assert table.look("select name, sequence from snapshots") == [{"name": "paper", "sequence": first}]
    with pytest.raises(QueryError, match="no state of the table is pinned as thesis; pinned are: paper"):
        table.catalog.history.named("thesis")
