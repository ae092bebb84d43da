"""What the workers said that they had done, kept by the process that is never killed, and checked as it comes in."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Said = Mapping[str, Any]
"""What a worker says: its `kind`, and values that JSON knows."""


@dataclass(frozen=True, slots=True)
class Line:
    """A worker's line to the journal."""

    send: Callable[[Said], None]
    stopping: Callable[[], bool]
    """Whether the worker shall end."""

    def say(self, kind: str, **values: Any) -> None:
        self.send({"kind": kind, **values})


@dataclass(slots=True)
class Journal:
    """Every write that was acknowledged: what the table owes. What was only announced may be there or not."""

    leases: set[str] = field(default_factory=set)
    appends: dict[str, dict[str, str]] = field(default_factory=dict)
    """By key, the digest of each group's rows."""
    rows: dict[str, list[str]] = field(default_factory=dict)
    """By group, the experience ids of its rows."""
    labels: dict[str, list[Any]] = field(default_factory=dict)
    """By key: experience, field, value, author."""
    announced: set[str] = field(default_factory=set)
    """Keys of appends and labels that somebody began to write."""
    claims: dict[int, tuple[list[str], str]] = field(default_factory=dict)
    """By step, its groups in order, and a digest of everything that was read of them."""
    steps: dict[int, float] = field(default_factory=dict)
    """By step, the figure that it was committed with."""
    pins: dict[str, str] = field(default_factory=dict)
    """By name, a digest of everything that the table showed at that state."""
    num_seen: int = 0
    """Most rows that any reader saw."""
    unfinished: dict[str, dict[str, Said]] = field(default_factory=dict)
    """By worker and key, what it announced, and did not say that it had done."""
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Everything else that must not be."""

    def hear(self, worker: str, said: Said) -> None:
        """Write down what a worker said."""
        self.counts[said["kind"]] += 1
        match said["kind"]:
            case "leased":
                self.leases.update(said["leases"])
            case "appending" | "labelling":
                self.announced.update(said["keys"])
                self.unfinished.setdefault(worker, {})[said["keys"][0]] = said
            case "appended":
                self._finish(worker, said["key"])
                self._appended(said["key"], said["groups"], said["rows"])
            case "labelled":
                self._finish(worker, said["labels"][0][0])
                self.labels.update({key: values for key, *values in said["labels"]})
            case "claimed":
                self._claimed(said["step"], said["groups"], said["digest"])
            case "committed":
                self._same(self.steps.setdefault(said["step"], said["figure"]), said["figure"], f"what step {said['step']} learned")
            case "pin_read":
                self._same(self.pins.setdefault(said["name"], said["digest"]), said["digest"], f"the pinned state {said['name']}")
            case "read":
                if said["rows"] < self.num_seen:
                    self.lost.append(f"{worker} saw {said['rows']} rows, and there were {self.num_seen} before")
                self.num_seen = max(self.num_seen, said["rows"])
            case "lost" | "duplicated" | "wrong":
                list.append(getattr(self, said["kind"]), f"{worker}: {said['what']}")

    def redo(self, worker: str) -> list[Said]:
        """What a worker's successor may do again; it announces it anew."""
        return list(self.unfinished.pop(worker, {}).values())

    def _finish(self, worker: str, key: str) -> None:
        self.unfinished.get(worker, {}).pop(key, None)

    def _appended(self, key: str, groups: dict[str, str], rows: dict[str, list[str]]) -> None:
        self._same(self.appends.setdefault(key, groups), groups, f"append {key}")
        self.rows.update(rows)

    def _claimed(self, step: int, groups: list[str], digest: str) -> None:
        known = self.claims.setdefault(step, (groups, digest))
        if known[0] != groups:
            self.duplicated.append(f"the claim of step {step} named {known[0]}, and names {groups} now")
        elif known[1] != digest:
            self.duplicated.append(f"the batch of step {step} was read twice, and differs")

    def _same(self, before: object, now: object, what: str) -> None:
        if before != now:
            self.wrong.append(f"{what} was {before}, and is {now} now")
