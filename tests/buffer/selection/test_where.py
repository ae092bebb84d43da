"""A condition in SQL bounds what any selection may choose."""

from pathlib import Path

import pytest

from rft_core.buffer import Questions, check_condition
from rft_core.errors import QueryError
from rft_core.types import Source
from tests.buffer.selection.choices import build, slots
from tests.buffer.table import Table, append_each, append_varied, group_id

SELECTIONS = ["oldest_first", "freshest_first", "priority", "expert_mix"]


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("reward > 0.5", [0, 2]),
        ("reward < 0", []),
        ("false", []),
        ("true", [0, 1, 2, 3]),
        ("task_id = 'task-3' or slot = 0", [0, 3]),
        ("reward_parts['exact'] = 1 and info->>'reason' = 'equal' and attempt = 1", [0, 1, 2, 3]),
        ("list_sum(logprobs) < -1 and len(tokens) = 5 and source = 'policy'", [0, 1, 2, 3]),
        ("labelled_reward is null and fate = 'ready' and policy_version = 0", [0, 1, 2, 3]),
        ("slot = 1 -- the rest is a comment", [1]),
        ("slot in (select max(slot) from groups)", [3]),
    ],
)
def test_groups_with_a_row_that_it_holds_for_are_chosen_among(condition: str, found: list[int], table: Table) -> None:
    append_each(table, "a", [(1, 0), (0.5, 0.5), (0, 1), (0.25, 0)])
    claim = table.choose(1, build("oldest_first"), table.take_over(), where=condition)
    assert slots(table, claim) == found
    assert claim.left_out == ({"where": 4 - len(found)} if len(found) < 4 else {})


@pytest.mark.parametrize("name", SELECTIONS)
def test_it_bounds_every_selection(name: str, table: Table) -> None:
    append_varied(table, "a", [{"source": source} for source in (Source.POLICY, Source.EXPERT) * 3])
    args = {"expert_frac": 0.5} if name == "expert_mix" else {}
    claim = table.choose(1, build(name, **args), table.take_over(), where="slot between 2 and 3")
    assert sorted(slots(table, claim)) == [2, 3]
    assert claim.left_out["where"] == 4


@pytest.mark.parametrize("name", SELECTIONS)
def test_one_that_selects_nothing_is_an_empty_batch_that_says_so(name: str, table: Table) -> None:
    append_each(table, "a", [(1, 0), (1, 0)])
    claim = table.choose(1, build(name), table.take_over(), where="reward > 1")
    assert (claim.group_ids, claim.left_out, claim.snapshot["staleness"]) == ((), {"where": 2}, 0)
    assert table.catalog.leases.fates() == {"ready": 2}


def test_stale_groups_are_stale_whatever_it_says(table: Table) -> None:
    generation = table.take_over()
    append_varied(table, "a", [{"policy_version": version} for version in range(3)])
    claim = table.choose(1, build("oldest_first"), generation, where="slot < 2", version=2, max_staleness=1)
    assert slots(table, claim) == [1]
    assert claim.left_out == {"stale": 1, "where": 1}


def test_late_rewards_and_shaped_ones_can_be_asked_for(shaping: Table) -> None:
    leases = append_each(shaping, "a", [(None, None), (1, 0)])
    rows = shaping.store.groups([group_id(leases[0])])[0].rows
    shaping.label({row.experience_id: 0.75 for row in rows})
    shaping.shape(factor=2)
    questions = Questions(shaping.storage, shaping.catalog, "p")
    assert questions.groups_where("labelled_reward = 0.75") == {group_id(leases[0])}
    assert questions.groups_where("shaped_reward = 1.5") == {group_id(leases[0])}
    assert questions.groups_where("shaped_reward = 2") == {group_id(leases[1])}


MALFORMED = [
    ("reward >", "Parser Error", "LINE 3: )"),
    ("rewrd > 0", "Binder Error: Referenced column", "LINE 2: rewrd > 0"),
    ("reward > 0; drop table groups", "Parser Error", "LINE 2: reward > 0; drop table groups"),
    ("reward > avg(reward)", "Binder Error", "LINE 2: reward > avg(reward)"),
    ("reward > (select n from nowhere)", "Catalog Error", "LINE 2: reward > (select n from nowhere)"),
    ("slot = 1 and\nreward > date '2020-01-01'", "Binder Error: Cannot compare", "LINE 3: reward > date '2020-01-01'"),
]


@pytest.mark.parametrize(("condition", "kind", "line"), MALFORMED)
def test_a_malformed_one_shows_what_duckdb_says_and_where(condition: str, kind: str, line: str, table: Table) -> None:
    append_each(table, "a", [(1, 0)])
    for asked in (Questions(table.storage, table.catalog, None).groups_where, check_condition):
        with pytest.raises(QueryError) as raised:
            asked(condition)
        said = raised.value.found.splitlines()
        assert said[0].startswith(kind)
        at = next(number for number, found in enumerate(said) if found.startswith("LINE"))
        assert said[at].startswith(line)
        assert said[at + 1].strip() == "^" * len(said[at + 1].strip()) != ""


@pytest.mark.parametrize("condition", ["", "  ", "\n"])
def test_an_empty_one_is_refused(condition: str, table: Table) -> None:
    for asked in (Questions(table.storage, table.catalog, None).groups_where, check_condition):
        with pytest.raises(QueryError, match="^the condition is empty; as in `reward > 0`"):
            asked(condition)


@pytest.mark.parametrize(
    "condition", ["reward > 0", "shaped_reward is null or dropped_by = 'x'", "step = 1 and slot = 0", "info->>'a' = 'b'"]
)
def test_a_right_one_is_accepted_without_any_run(condition: str) -> None:
    check_condition(condition)


def test_it_cannot_read_what_is_outside(table: Table, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    hidden = [{"a": 1}]
    assert hidden
    for condition in (
        f"exists (select * from '{secret}')",
        f"exists (select * from read_csv('{secret}'))",
        "exists (select * from hidden)",
    ):
        for asked in (Questions(table.storage, table.catalog, None).groups_where, check_condition):
            with pytest.raises(QueryError):
                asked(condition)
