"""From a recipe's selection to a claim: batches that are not full, and what was passed over."""

import pytest

from rft_core.buffer.selection import selectors
from rft_core.errors import ConfigError
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_each

NAMES = ["expert_mix", "freshest_first", "oldest_first", "priority"]


def test_every_selection_is_known_by_its_name() -> None:
    assert selectors.names() == NAMES
    with pytest.raises(ConfigError, match="selection.*newest_first.*expert_mix, freshest_first, oldest_first, priority"):
        build("newest_first")


@pytest.mark.parametrize("name", NAMES)
def test_a_step_chooses_once(name: str, table: Table) -> None:
    append_each(table, "a", [(1, 0)] * 4)
    generation = table.take_over()
    args = {"expert_frac": 0.0} if name == "expert_mix" else {}
    first = table.choose(1, build(name, **args), generation, count=2)
    assert len(first.group_ids) == 2
    assert table.choose(1, build(name, **args), generation, count=4, where="false") == first
    assert table.catalog.claims.find(1) == first


@pytest.mark.parametrize("where", [None, "slot < 2"])
def test_a_batch_that_is_not_full_is_skipped_where_the_recipe_says_so(where: str | None, table: Table) -> None:
    generation = table.take_over()
    append_each(table, "a", [(1, 0)] * 3)
    skipped = table.choose(1, build("oldest_first"), generation, count=4, where=where, skip_short=True)
    found = 3 if where is None else 2
    assert skipped.group_ids == ()
    assert skipped.left_out == {"short_batch": found, **({} if where is None else {"where": 1})}
    append_each(table, "b", [(1, 0)], step=2)
    assert slots(table, table.choose(2, build("oldest_first"), generation, count=4, skip_short=True)) == [0, 1, 2, 0]


def test_a_skipped_batch_uses_nothing_up(table: Table) -> None:
    generation = table.take_over()
    append_each(table, "a", [(1, 0)])
    table.choose(1, build("priority", max_uses=2), generation, count=2, skip_short=True)
    assert table.look("select uses, queue, claimed_step from groups") == [{"uses": 0, "queue": "training", "claimed_step": None}]


def test_what_was_left_out_is_asked_in_sql(table: Table) -> None:
    append_each(table, "a", [(1, 0)] * 3)
    table.choose(1, build("oldest_first"), table.take_over(), where="slot = 1")
    assert table.ask("select step, (left_out->>'where')::int as n, json_array_length(groups) as g from claims") == [
        {"step": 1, "n": 2, "g": 1}
    ]
