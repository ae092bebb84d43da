"""The groups that wait for training: in every order, by every source, and always through an index."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.engine.interfaces import ExecutionContext

from rft_core.catalog import Candidate, Candidates, Catalog, Choice
from rft_core.catalog.candidates import Order
from tests.catalog.ledger import candidates, claim, fill, group_ids, lease, store, take_over

ORDERS: tuple[Order, ...] = ("oldest", "freshest", "priority")


def test_a_candidate_says_all_that_a_selection_goes_by(catalog: Catalog) -> None:
    ids = fill(catalog, 3, [{"status": "failed"}, {"lowest_version": 2, "source": "human", "priority": 0.5}])
    assert candidates(catalog) == [Candidate(ids[1], 3, 1, 2, "ready", "human", 0.5, 0, 0)]


def test_orders_go_by_version_then_by_step_and_slot(catalog: Catalog) -> None:
    later = fill(catalog, 2, [{"lowest_version": 1}, {"lowest_version": 0}])
    earlier = fill(catalog, 1, [{"lowest_version": 1}, {"lowest_version": 1}])
    oldest = [later[1], *earlier, later[0]]
    assert [one.group_id for one in candidates(catalog, "oldest")] == oldest
    assert [one.group_id for one in candidates(catalog, "freshest")] == oldest[::-1]


def test_the_highest_priority_comes_first_and_of_equals_the_freshest(catalog: Catalog) -> None:
    ids = fill(catalog, 1, [{"priority": value} for value in (0.0, 1.0, -1.0, 1.0)])
    newer = fill(catalog, 2, [{"priority": 1.0, "lowest_version": 1}])
    assert [one.group_id for one in candidates(catalog, "priority")] == [newer[0], ids[3], ids[1], ids[0], ids[2]]


@pytest.mark.parametrize("order", ORDERS)
def test_the_groups_of_one_source_come_in_the_same_order(catalog: Catalog, order: Order) -> None:
    sources = ["policy", "expert", "human", "policy", "expert"]
    fill(catalog, 1, [{"source": source, "priority": -place, "lowest_version": place % 2} for place, source in enumerate(sources)])
    everything = candidates(catalog, order)
    assert len(everything) == 5
    for source in set(sources):
        assert candidates(catalog, order, source) == [one for one in everything if one.source == source]


@pytest.mark.parametrize("order", ORDERS)
def test_only_what_waits_for_training_is_a_candidate(catalog: Catalog, order: Order) -> None:
    fill(catalog, 1, [{"status": status} for status in ("pending", "failed", "timed_out")] + [{"queue": "shaping"}])
    ids = fill(catalog, 1, [{}, {}])
    claim(catalog, 1, take_over(catalog), count=1)
    assert [one.group_id for one in candidates(catalog, order)] == ids[1:]


@pytest.mark.parametrize("order", ORDERS)
def test_walks_may_be_left_at_any_point_and_go_on_side_by_side(catalog: Catalog, order: Order) -> None:
    issued = lease(catalog, 1, 600)  # more than are fetched at once
    store(catalog, "a", issued)
    seen: list[str] = []

    def choose(pool: Candidates) -> Choice:
        left, first, second = pool.by(order), pool.by(order), pool.by(order, "policy")
        next(left)
        for one, other in zip(first, second, strict=True):
            assert one == other
            seen.append(one.group_id)
        return Choice([])

    catalog.claims.make(1, choose, 0, 9, None, take_over(catalog))
    assert seen == (group_ids(issued) if order == "oldest" else group_ids(issued)[::-1])


def test_what_waits_is_found_through_an_index(catalog: Catalog) -> None:
    generation = take_over(catalog)
    fill_to_be_large(catalog)
    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: candidates(catalog, "oldest"), "groups_to_train"),
        (lambda: candidates(catalog, "freshest"), "groups_to_train"),
        (lambda: candidates(catalog, "oldest", "expert"), "groups_to_train"),
        (lambda: candidates(catalog, "priority"), "groups_to_train_by_priority"),
        (lambda: claim(catalog, 1, generation, 0, max_staleness=-5), "groups_to_train"),
        (catalog.segments.to_shape, "groups_to_shape"),
        (lambda: catalog.labels.settle("drop", "training"), "groups_to_label"),
        (lambda: catalog.leases.renew("explorer"), "leases_in_flight"),
        (catalog.leases.expire_overdue, "leases_in_flight"),
    ]
    for ask, index in asked:
        plans = plans_of(catalog, ask)
        assert plans
        for plan in plans:
            assert re.search(rf"\b{index}\b", plan), plan
            if index.startswith("groups_to_train"):  # a walk that sorted would read all that waits
                assert not re.search("TEMP B-TREE|Sort", plan), plan


def fill_to_be_large(catalog: Catalog) -> None:
    """So many groups that it matters how those are found that wait: one in eight."""
    numbers = "with recursive numbers(n) as (select 0 union all select n + 1 from numbers where n < 20000)"
    lease(catalog, 1, 1)
    store(catalog, "a", catalog.leases.open(1))
    leases = (
        "insert into leases (lease_id, step, slot, position, task_id, epoch, explorer, issued_at, fate, reason) "
        f"{numbers} select 'l' || n, 2 + n / 100, n % 100, n, 't' || n, 0, 'e', 0.0, 'stored', '' from numbers"
    )
    groups = (
        "insert into groups (group_id, lease_id, task_id, segment, step, slot, size, status, reason, lowest_version, priority, queue) "
        f"{numbers} select 'g' || n, 'l' || n, 't' || n, 'a', 2 + n / 100, n % 100, 4, 'ready', '', n / 100, n * 7919 % 1000, "
        "case n % 24 when 0 then 'training' when 1 then 'shaping' when 2 then 'labels' end from numbers"
    )
    with catalog._database.write() as connection:
        for statement in (leases, groups, "analyze"):
            connection.execute(text(statement))


def plans_of(catalog: Catalog, ask: Callable[[], object]) -> list[str]:
    """How the database goes about the statements on groups and leases that a call makes."""
    statements: list[tuple[str, Any]] = []

    def keep(connection: Connection, _cursor: object, statement: str, parameters: Any, context: ExecutionContext, _many: bool) -> None:
        if re.search(r"(from|update) (groups|leases)\b", statement, re.IGNORECASE):
            walks = connection.dialect.name == "postgresql" and context.execution_options.get("yield_per")
            explain = "explain query plan" if connection.dialect.name == "sqlite" else "explain"
            statements.append((f"{explain} {'declare walk cursor for ' if walks else ''}{statement}", parameters))

    engine = catalog._database._engine
    event.listen(engine, "before_cursor_execute", keep)
    ask()
    event.remove(engine, "before_cursor_execute", keep)
    with catalog._database.read() as connection:
        return ["\n".join(str(row[-1]) for row in connection.exec_driver_sql(*explained)) for explained in statements]
