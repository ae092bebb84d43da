"""Ends the run as it would end by itself, and judges the table by the journal: nothing lost, nothing twice, every sum right."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from benchmarks.torture.compactor import Compactor, live_files
from benchmarks.torture.explorer import digest_of
from benchmarks.torture.journal import Journal, Line
from benchmarks.torture.labeller import WAITING, Labeller
from benchmarks.torture.place import LEASE_S, TERMS, Checkpoint, Place
from benchmarks.torture.trainer import Trainer
from rft_core.buffer import ExperienceStore, Table, files, rows, schema
from rft_core.buffer.fsck import fsck
from rft_core.errors import SegmentError
from rft_core.run_dir import OVERLAYS, SEGMENTS
from rft_core.types import Experience

OPEN_FATES = ("in_flight", "ready", "pending")
FINISHER = "finisher"


@dataclass(slots=True)
class Verdict:
    """What is wrong with a table."""

    lost: list[str] = field(default_factory=list)
    """What was acknowledged, and is not there, or not as it was."""
    duplicated: list[str] = field(default_factory=list)
    """What is there twice, or was trained by two steps."""
    wrong: list[str] = field(default_factory=list)
    """Whatever else must not be: what nobody wrote, what does not end, files that nothing knows."""
    fsck: list[str] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    """How many leases have each fate."""
    sums_equal: bool = True
    """Whether they add up to the leases issued, one each."""

    @property
    def is_good(self) -> bool:
        return self.sums_equal and not (self.lost or self.duplicated or self.wrong or self.fsck)

    def lines(self) -> list[str]:
        """Everything that is wrong, one line each."""
        kinds = {"lost": self.lost, "duplicated": self.duplicated, "wrong": self.wrong, "fsck": self.fsck}
        return [f"{kind}: {line}" for kind, said in kinds.items() for line in said]


def finish(place: Place, journal: Journal, writers: Iterable[str]) -> None:
    """Let leases expire, label what waits, train what is left, sweep and compact: the run's own end.

    Args:
        place: The run; nobody works on it any more.
        journal: Where everything that is done is written.
        writers: The names under which killed processes may have left something.
    """
    line = Line(partial(journal.hear, FINISHER), lambda: False)
    time.sleep(LEASE_S)
    table = place.open(FINISHER)
    table.catalog.leases.expire_overdue()
    for writer in writers:
        ExperienceStore(table.storage, table.catalog, replace(TERMS, writer=writer)).sweep()
    with closing(Labeller(place, FINISHER, line, Random(0))) as labeller:
        if waiting := labeller.find(WAITING):
            labeller.label(waiting)
    with closing(Trainer(place, FINISHER, line, Random(0))) as trainer:
        trainer.begin(())
        trainer.read_again()
        while trainer.round() or table.catalog.segments.to_shape():
            pass
        trainer.step(least=0)  # one that may be empty: it lets go what has become too old
        trainer.checkpoint()
    table.catalog.leases.end_run()
    with closing(Compactor(place, FINISHER, line, Random(0))) as compactor:
        for name, sequence in table.catalog.history.pins().items():
            compactor.read_pin(name, sequence)
            table.catalog.history.unpin(name)
        compactor.compact(grace_s=0.0)
    table.catalog.close()


def judge(place: Place, journal: Journal) -> Verdict:
    """Compare a run that ended with what was acknowledged while it ran."""
    table = place.open(FINISHER)
    verdict = Verdict(list(journal.lost), list(journal.duplicated), list(journal.wrong))
    _judge_rows(table, journal, verdict)
    _judge_labels(table, journal, verdict)
    _judge_steps(table, journal, verdict)
    _judge_fates(table, journal, verdict)
    _judge_files(table, verdict)
    verdict.fsck = fsck(table, repair=False, grace_s=0.0, redo_from=Checkpoint.read(place).step + 1).left
    table.catalog.close()
    return verdict


def _judge_rows(table: Table, journal: Journal, verdict: Verdict) -> None:
    stored = _stored_groups(table, verdict)
    origins = {group["group_id"]: group["origin"] for group in _relation(table, "groups")}
    for key, groups in journal.appends.items():
        for group_id, digest in groups.items():
            if digest_of(stored.get(group_id, ())) != digest:
                there = len(stored.get(group_id, ()))
                verdict.lost.append(f"group {group_id} of append {key}: {there} of {len(journal.rows[group_id])} rows, or other ones")
            elif origins.get(group_id) != key:
                verdict.wrong.append(f"group {group_id} was appended by {key}, and says {origins.get(group_id)}")
    unknown = {origin for origin in origins.values() if origin not in journal.announced}
    verdict.wrong += [f"append {key} is in the table, and nobody began it" for key in sorted(unknown)]
    brought = Counter(origins.values())
    for key, groups in journal.appends.items():
        if brought[key] != len(groups):
            verdict.duplicated.append(f"append {key} brought {len(groups)} groups, and {brought[key]} say that they are of it")


def _stored_groups(table: Table, verdict: Verdict) -> dict[str, list[Experience]]:
    """Every row of the table, by group; read from the files themselves."""
    found: dict[str, list[Experience]] = {}
    seen: Counter[str] = Counter()
    for _, file in table.catalog.segments.files():
        try:
            content = rows.from_arrow(schema.upgrade(files.read(table.storage, file), file.uri))
        except SegmentError as error:
            verdict.lost.append(str(error))
            continue
        seen.update(row.experience_id for row in content)
        for row in content:
            found.setdefault(row.group_id, []).append(row)
    verdict.duplicated += [f"experience {one} is there {times} times" for one, times in seen.items() if times > 1]
    return found


def _judge_labels(table: Table, journal: Journal, verdict: Verdict) -> None:
    found: dict[str, list[Any]] = {}
    for row in _relation(table, "labels"):
        if row["key"] in found:
            verdict.duplicated.append(f"label {row['key']} is there twice")
        if row["key"] not in journal.announced:
            verdict.wrong.append(f"label {row['key']} is in the table, and nobody wrote it")
        found[row["key"]] = [row["experience_id"], row["value"], row["author"]]
    for key, said in journal.labels.items():
        if found.get(key) != said:
            verdict.lost.append(f"label {key} said {said}, and the table says {found.get(key)}")


def _judge_steps(table: Table, journal: Journal, verdict: Verdict) -> None:
    claims = {row["step"]: json.loads(row["groups"]) for row in _relation(table, "claims")}
    for step, (groups, _) in journal.claims.items():
        if claims.get(step) != groups:
            verdict.lost.append(f"the claim of step {step} named {groups}, and names {claims.get(step)}")
    claimed = Counter(group_id for groups in claims.values() for group_id in groups)
    verdict.duplicated += [f"group {group_id} is in {times} claims" for group_id, times in claimed.items() if times > 1]
    committed = {row["step"]: json.loads(row["metrics"])["loss"] for row in _relation(table, "steps")}
    for step, figure in journal.steps.items():
        if committed.get(step) != figure:
            verdict.lost.append(f"step {step} was committed with {figure}, and the table says {committed.get(step)}")
    for missing in sorted(claims.keys() ^ committed.keys()):
        verdict.wrong.append(f"step {missing} has only one of claim and commit")
    for group in _relation(table, "groups"):
        if group["trained_step"] is not None and group["group_id"] not in claims.get(group["trained_step"], ()):
            verdict.wrong.append(f"group {group['group_id']} was trained by step {group['trained_step']}, which did not claim it")


def _judge_fates(table: Table, journal: Journal, verdict: Verdict) -> None:
    fates = _relation(table, "fates")
    ledger = verdict.fates = table.catalog.leases.fates()
    issued = table.catalog.leases.num_issued()
    of_lease = Counter(row["lease_id"] for row in fates)
    verdict.sums_equal = sum(ledger.values()) == issued == len(fates) == len(of_lease)
    verdict.lost += [f"lease {one} is not there" for one in sorted(journal.leases - of_lease.keys())]
    verdict.wrong += [f"{ledger[fate]} leases are {fate} after the end" for fate in OPEN_FATES if ledger.get(fate)]


def _judge_files(table: Table, verdict: Verdict) -> None:
    """After a sweep and a compaction there is every file of the table, and no other."""
    there = {uri for folder in (SEGMENTS, OVERLAYS) for uri in table.storage.files(folder)}
    live = live_files(table)
    verdict.lost += [f"{uri} is missing" for uri in sorted(live - there)]
    verdict.wrong += [f"{uri} is of no use, and still there" for uri in sorted(there - live)]
    verdict.wrong += [f"{uri} was left by a killed writer" for folder in (SEGMENTS, OVERLAYS) for uri in table.storage.leftovers(folder)]
    verdict.wrong += [f"{uri} is still to be written" for uri in table.catalog.segments.intended_uris()]


def _relation(table: Table, name: str) -> list[dict[str, Any]]:
    columns, found = table.catalog.relation(name)
    return [dict(zip(columns, row, strict=True)) for row in found]
