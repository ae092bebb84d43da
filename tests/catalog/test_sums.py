"""Whatever explorers, trainers and labellers do, in any order: every lease has one fate, and it is the one that a small model says."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import update

from rft_core.catalog import REWARD, Label, Lease, NewGroup, Reuse, schema
from rft_core.errors import LostClaimError
from tests.catalog.conftest import Shared
from tests.catalog.ledger import OVER, commit, group, lease, oldest, overlay, store_groups, take_over, waiting

EXPLORERS = st.sampled_from(["a", "b"])
STEPS = st.integers(1, 3)
REJECTED = st.sampled_from([None, None, "too many failed"])
STALENESS = st.sampled_from([99, 99, 4, 1])
AGAIN = st.sampled_from([True, True, False])


@dataclass
class Group:
    """A group, as the model knows it."""

    new: NewGroup
    place: tuple[int, int, int]
    """Version, step and slot: its place among the oldest."""
    status: str
    queue: str | None
    awaits: list[str]
    """An experience id for each attempt that has no reward yet."""
    rewarded: int
    trained: bool = False

    def end(self, status: str) -> None:
        self.status, self.queue = status, None


@dataclass
class Issue:
    """A lease, as the model knows it."""

    lease: Lease
    explorer: str
    over: bool
    fate: str | None = None
    """Null while in flight; `stored`: that of its group."""
    group: Group | None = None


@dataclass
class Model:
    issues: list[Issue] = field(default_factory=list)
    last_claim: int = 0
    claimed: list[Group] | None = None
    """Of a step that is not committed yet."""

    def in_flight(self) -> list[Issue]:
        return [issue for issue in self.issues if issue.fate is None]

    def groups(self, queue: str) -> list[Group]:
        found = [issue.group for issue in self.issues if issue.group is not None and issue.group.queue == queue]
        return sorted(found, key=lambda group: group.place)

    def newest(self, step: int) -> dict[int, Issue]:
        """The newest issue of each slot of a step."""
        return {issue.lease.slot: issue for issue in self.issues if issue.lease.step == step}

    def fates(self) -> Counter[str]:
        fates: Counter[str] = Counter()
        for issue in self.issues:
            stored = issue.group.status if issue.group is not None else ""
            fates[stored if issue.fate == "stored" else issue.fate or "in_flight"] += 1
        return fates


class Run(RuleBasedStateMachine):
    """Everything that is done to the catalog of a run, once for real and once to the model."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        shared.empty()
        self.catalog = shared.catalog
        self.model = Model()
        self.generation = take_over(self.catalog)
        self.number = 0

    def key(self) -> str:
        self.number += 1
        return f"key-{self.number}"

    @rule(step=STEPS, fresh=st.integers(0, 3), explorer=EXPLORERS, over=st.booleans())
    def issue(self, step: int, fresh: int, explorer: str, over: bool) -> None:
        self.expire()
        slots = self.model.newest(step)
        again = [(slot, issue.lease.epoch + 1) for slot, issue in sorted(slots.items()) if issue.fate in ("expired", "failed")]
        issued = lease(self.catalog, step, fresh, explorer=explorer, lease_s=OVER if over else 60.0)
        assert [(one.slot, one.epoch) for one in issued] == [*again, *((len(slots) + offset, 0) for offset in range(fresh))]
        self.model.issues += [Issue(one, explorer, over) for one in issued]

    @precondition(lambda self: self.model.in_flight())
    @rule(explorer=EXPLORERS)
    def renew(self, explorer: str) -> None:
        held = [issue for issue in self.model.in_flight() if issue.explorer == explorer]
        assert self.catalog.leases.renew(explorer) == len(held)
        for issue in held:
            issue.over = False

    @precondition(lambda self: self.model.in_flight())
    @rule()
    def expire_overdue(self) -> None:
        assert self.catalog.leases.expire_overdue() == self.expire()

    @precondition(lambda self: self.model.in_flight())
    @rule(explorer=EXPLORERS)
    def take_back(self, explorer: str) -> None:
        held = [issue for issue in self.model.in_flight() if issue.explorer == explorer]
        assert self.catalog.leases.take_back(explorer, "killed") == len(held)
        for issue in held:
            issue.fate = "expired"

    @rule(data=st.data(), step=STEPS, count=st.integers(2, 4), explorer=EXPLORERS, rejected=REJECTED)
    def sample(self, data: st.DataObject, step: int, count: int, explorer: str, rejected: str | None) -> None:
        self.issue(step, count, explorer, over=False)
        self.append(data, self.model.issues[-count:], rejected)

    @precondition(lambda self: any(issue.group is None for issue in self.model.issues))
    @rule(data=st.data(), rejected=REJECTED)
    def append_some(self, data: st.DataObject, rejected: str | None) -> None:
        without = [issue for issue in self.model.issues if issue.group is None]
        self.append(data, data.draw(st.lists(st.sampled_from(without), min_size=1, max_size=4, unique_by=id), label="leases"), rejected)

    def append(self, data: st.DataObject, issues: list[Issue], rejected: str | None) -> None:
        for issue in issues:
            issue.group = self.draw_group(data, issue, rejected)
        store_groups(self.catalog, self.key(), 1, [issue.group.new for issue in issues if issue.group is not None], rejected)
        for issue in issues:
            assert issue.group is not None
            if issue.fate is None:
                issue.fate = "stored" if rejected is None else "failed"
            else:
                issue.group.end("late")

    @precondition(lambda self: any(issue.group is not None for issue in self.model.issues))
    @rule(data=st.data())
    def append_once_more(self, data: st.DataObject) -> None:
        issue = data.draw(st.sampled_from([issue for issue in self.model.issues if issue.group is not None]))
        with pytest.raises(LostClaimError):
            store_groups(self.catalog, self.key(), 1, [group(issue.lease, group_id="another")])

    @precondition(lambda self: self.model.groups("shaping"))
    @rule(drops_first=st.booleans())
    def shape(self, drops_first: bool) -> None:
        groups = self.model.groups("shaping")
        dropped = groups[:1] if drops_first else []
        ids = [one.new.group_id for one in groups]
        overlay(self.catalog, self.key(), ids, dropped={one.new.group_id: "op: why" for one in dropped})
        for one in groups:
            if one in dropped:
                one.end("dropped")
            else:
                one.queue = "training"

    @precondition(lambda self: self.model.groups("labels"))
    @rule(data=st.data())
    def label(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.model.groups("labels")))
        experience = one.awaits.pop(0)
        said = Label(self.key(), experience, one.new.group_id, REWARD, 1.0, "ada")
        completed = (one.new.group_id,) if not one.awaits else ()
        assert self.catalog.labels.add([said, said], "training").completed == completed
        one.rewarded += 1
        if completed:
            one.status, one.queue = "ready", "training"

    @precondition(lambda self: self.model.groups("labels"))
    @rule(trains_rest=st.booleans())
    def settle(self, trains_rest: bool) -> None:
        groups = self.model.groups("labels")
        with self.catalog._database.write() as connection:
            connection.execute(update(schema.groups).values(due_at=0.0))
        go_on = [one for one in groups if trains_rest and one.rewarded]
        counted = self.catalog.labels.settle("train_rest" if trains_rest else "drop", "training")
        assert counted == (len(groups) - len(go_on), len(go_on))
        for one in groups:
            if one in go_on:
                one.status, one.queue = "ready", "training"
            else:
                one.end("dropped")

    @rule(steps=st.integers(1, 3), most=st.integers(1, 3), max_staleness=STALENESS, again=AGAIN, num_trained=st.integers(0, 3))
    def train(self, steps: int, most: int, max_staleness: int, again: bool, num_trained: int) -> None:
        for _ in range(steps):
            if self.model.claimed is None:
                self.claim(most, max_staleness, again)
            self.commit(num_trained, times=1)

    @precondition(lambda self: self.model.claimed is None)
    @rule(most=st.integers(0, 3), max_staleness=STALENESS, again=AGAIN)
    def claim(self, most: int, max_staleness: int, again: bool) -> None:
        model, step = self.model, self.model.last_claim + 1
        stale = [one for one in model.groups("training") if one.place[0] < step - 1 - max_staleness]
        for one in stale:
            one.end("trained" if one.trained else "stale")
        model.claimed, model.last_claim = model.groups("training")[:most], step
        choose = oldest(most, Reuse(0.0, step + 1) if again else None)
        made = self.catalog.claims.make(step, choose, step - 1, max_staleness, None, self.generation)
        assert made.group_ids == tuple(one.new.group_id for one in model.claimed)
        assert made.left_out == ({"stale": len(stale)} if stale else {})
        assert self.catalog.claims.make(step, oldest(99), 99, 0, None, self.generation) == made
        if not again:
            for one in model.claimed:
                one.queue = None

    @precondition(lambda self: self.model.claimed is not None)
    @rule(num_trained=st.integers(0, 3), times=st.integers(1, 2))
    def commit(self, num_trained: int, times: int) -> None:
        claimed, self.model.claimed = self.model.claimed or [], None
        trained, others = claimed[:num_trained], claimed[num_trained:]
        left_out = {one.new.group_id: "all rewards equal" for one in others}
        for _ in range(times):
            commit(self.catalog, self.model.last_claim, [one.new.group_id for one in trained], self.generation, left_out=left_out)
        for one in trained:
            one.status, one.trained = "trained", True
        for one in others:
            if one.status == "ready":
                one.end("dropped")

    @precondition(lambda self: self.model.last_claim > 2)
    @rule()
    def end_run(self) -> None:
        open_leases = self.model.in_flight()
        assert self.catalog.leases.end_run() == len(open_leases)
        for issue in open_leases:
            issue.fate = "unused"
        for issue in self.model.issues:
            if issue.group is not None:
                issue.group.end("unused" if issue.group.status in ("ready", "pending") else issue.group.status)

    @invariant()
    def every_lease_has_one_fate(self) -> None:
        assert self.catalog.leases.fates() == self.model.fates()

    @invariant()
    def what_waits_for_training_is_what_should(self) -> None:
        assert waiting(self.catalog) == [one.new.group_id for one in self.model.groups("training")]

    def teardown(self) -> None:
        assert sum(self.catalog.leases.fates().values()) == self.catalog.leases.num_issued() == len(self.model.issues)
        assert self.catalog.audit.breaches(None) == []

    def expire(self) -> int:
        """Leases that are over expire; returns how many."""
        overdue = [issue for issue in self.model.in_flight() if issue.over]
        for issue in overdue:
            issue.fate = "expired"
        return len(overdue)

    def draw_group(self, data: st.DataObject, issue: Issue, rejected: str | None) -> Group:
        statuses = ["failed"] if rejected else ["ready", "ready", "pending", "failed", "timed_out"]
        status = data.draw(st.sampled_from(statuses), label="status")
        version = data.draw(st.integers(0, 3), label="version")
        values: dict[str, Any] = {"lowest_version": version}
        awaits, rewarded = [], data.draw(st.integers(0, 1), label="rewarded")
        if status == "pending":
            awaits = [f"{issue.lease.lease_id}-{attempt}" for attempt in range(data.draw(st.integers(1, 2), label="awaited"))]
            values |= {"rewarded": rewarded, "awaits": [[one] for one in awaits], "due_in_s": 60.0}
        if status == "ready":
            values["queue"] = data.draw(st.sampled_from(["training", "shaping"]), label="queue")
        new = group(issue.lease, status, **values)
        return Group(new, (version, issue.lease.step, issue.lease.slot), status, new.queue, awaits, rewarded)


def test_every_lease_has_one_fate_and_the_sums_are_right(shared: Shared) -> None:
    class RunOfThisCatalog(Run):
        def __init__(self) -> None:
            super().__init__(shared)

    asks_a_server = shared.place.url.startswith("postgresql")
    bounds = settings(
        max_examples=6 if asks_a_server else 20,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(RunOfThisCatalog, settings=bounds)
