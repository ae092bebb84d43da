"""The groups that promise most, and perhaps more than once: prioritised replay."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from rft_core.buffer import Selector
from rft_core.errors import ConfigError
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_each, append_varied, group_id


def scored(table: Table, **args: object) -> Selector:
    """The selection `priority`, which scores what this table stores from now on."""
    selector = build("priority", **args)
    table.store.terms = replace(table.store.terms, score=selector.score)
    return selector


def test_the_widest_spread_of_rewards_comes_first(table: Table) -> None:
    priority = scored(table)
    append_each(table, "a", [(1, 1, 1, 1), (1, 0, 0, 0), (1, 1, 0, 0), (0.5, 0.25, None, None)])
    assert slots(table, table.choose(1, priority, table.take_over(), count=3)) == [2, 1, 3]
    found = table.look("select priority from groups order by slot")
    assert [row["priority"] for row in found] == pytest.approx([0.0, 0.4330127, 0.5, 0.125])


def test_of_equals_the_freshest_comes_first(table: Table) -> None:
    priority = scored(table)
    append_varied(table, "a", [{"policy_version": version} for version in (2, 1, 2, 0)])
    assert slots(table, table.choose(1, priority, table.take_over(), version=3)) == [2, 0, 1, 3]


def test_by_recency_rewards_do_not_count(table: Table) -> None:
    priority = scored(table, by="recency")
    append_each(table, "a", [(1, 0), (1, 1), (0.5, 0)])
    assert slots(table, table.choose(1, priority, table.take_over())) == [2, 1, 0]


@pytest.mark.parametrize("by", ["label", "recency", "reward_spread"])
def test_a_label_sets_the_priority_whatever_it_was(by: str, table: Table) -> None:
    priority = scored(table, by=by)
    leases = append_each(table, "a", [(1, 1), (1, 0), (0.5, 0.5)])
    first = {group.group_id: group.rows[0].experience_id for group in table.store.groups([group_id(lease) for lease in leases])}
    table.label({first[group_id(leases[2])]: 3.0, first[group_id(leases[0])]: 2.0}, field="priority")
    table.label({first[group_id(leases[1])]: -1.0}, field="priority", author="bob")
    assert slots(table, table.choose(1, priority, table.take_over())) == [2, 0, 1]


def test_a_use_costs_priority_and_the_last_use_ends_it(table: Table) -> None:
    priority = scored(table, by="label", decay=0.4, max_uses=2)
    generation = table.take_over()
    leases = append_each(table, "a", [(1, 0), (1, 0), (1, 0)])
    rows = {lease.slot: table.store.groups([group_id(lease)])[0].rows[0].experience_id for lease in leases}
    table.label({rows[0]: 1.0, rows[1]: 0.7, rows[2]: 0.2}, field="priority")
    # 1.0 0.7 0.2 | 0.6 0.7 0.2 | 0.6 0.3 0.2 | - 0.3 0.2 | - - 0.2 | - - -0.2
    taken = [slots(table, table.choose(step, priority, generation, count=1)) for step in range(1, 8)]
    assert taken == [[0], [1], [0], [1], [2], [2], []]
    assert table.look("select uses, claimed_step from groups order by slot") == [
        {"uses": 2, "claimed_step": 3},
        {"uses": 2, "claimed_step": 4},
        {"uses": 2, "claimed_step": 6},
    ]


def test_a_group_rests_between_two_uses(table: Table) -> None:
    priority = scored(table, decay=0, max_uses=10, cool_down=2)
    generation = table.take_over()
    append_each(table, "a", [(1, 0)])
    claims = [table.choose(step, priority, generation, count=1) for step in range(1, 8)]
    assert [slots(table, claim) for claim in claims] == [[0], [], [], [0], [], [], [0]]
    assert [claim.left_out for claim in claims] == [{} if step % 3 == 1 else {"cooling_down": 1} for step in range(1, 8)]


@pytest.mark.parametrize(("max_uses", "cool_down", "decay", "count"), [(1, 0, 0.1, 2), (3, 1, 0.1, 2), (2, 3, 0.0, 3), (4, 0, 0.2, 6)])
def test_replay_over_many_steps_is_what_the_rule_says(max_uses: int, cool_down: int, decay: float, count: int, table: Table) -> None:
    """Every step brings two groups; what the claims take is compared with the rule, written down a second time."""
    priority = scored(table, max_uses=max_uses, cool_down=cool_down, decay=decay)
    generation = table.take_over()
    spreads = [(1, 0), (1, 0.5), (1, 1), (0.9, 0), (0.5, 0), (0.2, 0)]
    expected: dict[str, tuple[float, tuple[int, int], int, int]] = {}  # priority, age, uses, first step that may take it
    uses: dict[str, list[int]] = defaultdict(list)
    for step in range(1, 11):
        brought = [spreads[(2 * step + offset) % len(spreads)] for offset in range(2)]
        for lease, (high, low) in zip(append_each(table, f"step-{step}", brought, step), brought, strict=True):
            expected[group_id(lease)] = ((high - low) / 2, (step, lease.slot), 0, 0)
        allowed = [(found[0], found[1], name) for name, found in expected.items() if found[2] < max_uses and found[3] <= step]
        due = [name for *_, name in sorted(allowed, reverse=True)[:count]]
        claim = table.choose(step, priority, generation, count=count)
        assert list(claim.group_ids) == due
        table.commit(claim, generation)
        for name in due:
            worth, age, used, _ = expected[name]
            expected[name] = (worth - decay, age, used + 1, step + 1 + cool_down)
            uses[name].append(step)
    assert max(map(len, uses.values())) == min(max_uses, 10)
    assert min((later - earlier for at in uses.values() for earlier, later in pairwise(at)), default=99) > cool_down
    assert table.catalog.leases.fates()["trained"] == len(uses)


def test_a_replayed_group_keeps_the_fate_of_its_first_step(table: Table) -> None:
    priority = scored(table, max_uses=2)
    generation = table.take_over()
    append_each(table, "a", [(1, 0)])
    for step in (1, 2):
        table.commit(table.choose(step, priority, generation, count=1), generation)
    assert table.look("select fate, trained_step from fates") == [{"fate": "trained", "trained_step": 1}]
    assert table.choose(3, priority, generation).group_ids == ()


def test_staleness_bounds_replay(table: Table) -> None:
    priority = scored(table, max_uses=5, decay=0)
    generation = table.take_over()
    append_each(table, "a", [(1, 0), (1, 0)])
    taken = []
    for step in (1, 2, 3, 4):
        claim = table.choose(step, priority, generation, count=1, max_staleness=2)
        table.commit(claim, generation)
        taken.append((slots(table, claim), claim.left_out))
    assert taken == [([1], {}), ([1], {}), ([1], {}), ([], {"stale": 2})]
    # The one that was trained stays trained; the one that never was is stale.
    assert [row["fate"] for row in table.look("select fate from fates order by slot")] == ["stale", "trained"]


def test_a_step_that_is_redone_uses_nothing_up(table: Table) -> None:
    priority = scored(table, max_uses=3)
    generation = table.take_over()
    append_each(table, "a", [(1, 0), (1, 1)])
    first = table.choose(1, priority, generation, count=1)
    table.catalog.trainers.release(generation)
    again = table.choose(1, priority, table.take_over("restarted"), count=2)
    assert again == first
    assert table.look("select uses from groups order by slot") == [{"uses": 1}, {"uses": 0}]


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"by": "age"}, "by"),
        ({"decay": -0.1}, "decay"),
        ({"max_uses": 0}, "max_uses"),
        ({"cool_down": -1}, "cool_down"),
        ({"top": 1}, "top"),
    ],
)
def test_arguments_that_cannot_be_right_are_refused_by_key(args: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^selection\.args\.{key}: found"):
        build("priority", **args)
