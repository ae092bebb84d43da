"""Short ways to fill a catalog: what the explorer and the trainer do to it, without files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from rft_core.catalog import Candidate, Candidates, Catalog, Choice, Claim, Lease, NewGroup, Reuse, StepRow, StoredFile
from rft_core.catalog.candidates import Order
from rft_core.processes import Process

OVER = -1.0
"""Seconds of a lease that is over as soon as it is given."""
QUEUES = {"ready": "training", "pending": "labels"}
"""What a new group of each status waits for, in a run without operators."""


def rows(catalog: Catalog, relation: str, *order: str) -> list[dict[str, Any]]:
    """What a table or view holds, in the order of some columns."""
    columns, found = catalog.relation(relation)
    return sorted((dict(zip(columns, row, strict=True)) for row in found), key=lambda row: [row[name] for name in order])


def task_id_at(position: int) -> str:
    """Four tasks, over and over."""
    return f"task-{position % 4}"


def lease(
    catalog: Catalog, step: int, fresh: int, end: int | None = None, explorer: str = "explorer", lease_s: float = 60.0
) -> list[Lease]:
    return catalog.leases.issue(step, fresh, explorer, task_id_at, end, lease_s)


def group(of: Lease, status: str = "ready", **values: Any) -> NewGroup:
    reason = "" if status == "ready" else f"it is {status}"
    return replace(NewGroup(f"g-{of.lease_id}", of.lease_id, 4, status, reason, 0, queue=QUEUES.get(status)), **values)


def group_ids(leases: Sequence[Lease]) -> list[str]:
    return [group(one).group_id for one in leases]


def store(catalog: Catalog, key: str, leases: Sequence[Lease], statuses: Sequence[str] = (), rejected: str | None = None) -> StoredFile:
    """Commit a segment that holds a group for each lease."""
    groups = [group(one, status) for one, status in zip(leases, statuses or ["ready"] * len(leases), strict=True)]
    return store_groups(catalog, key, leases[0].step, groups, rejected)


def store_groups(catalog: Catalog, key: str, step: int, groups: Sequence[NewGroup], rejected: str | None = None) -> StoredFile:
    """Commit a segment that holds some groups."""
    file = file_of(f"segments/{key}.parquet", 4 * len(groups))
    catalog.segments.intend(key, file.uri, "explorer")
    catalog.segments.commit(key, file, "explorer", step, 1, groups, rejected)
    return file


def fill(catalog: Catalog, step: int, groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lease and store groups that differ from ready ones in some values; returns their ids in the order given."""
    leases = lease(catalog, step, len(groups))
    new = [group(one, **values) for one, values in zip(leases, groups, strict=True)]
    store_groups(catalog, f"step-{step}-{leases[0].slot}", step, new)
    return group_ids(leases)


def file_of(uri: str, num_rows: int = 4) -> StoredFile:
    return StoredFile(uri, num_rows, 100, "0" * 64)


def overlay(
    catalog: Catalog,
    key: str,
    ids: Sequence[str],
    pipeline: str = "p",
    dropped: Mapping[str, str] = {},
    moves_on: bool = True,
    read_at: int | None = None,
) -> StoredFile:
    """Commit an overlay over some groups."""
    file = file_of(f"overlays/{key}.parquet")
    catalog.segments.intend(key, file.uri, "explorer")
    catalog.segments.commit_overlay(key, pipeline, file, ids, [{"name": "op"}], dropped, moves_on, read_at)
    return file


def take_over(catalog: Catalog, name: str = "trainer", lease_s: float = 60.0) -> int:
    """Become the trainer, from a process that nobody can see."""
    return catalog.trainers.take_over(Process(name, f"elsewhere|{name}|1"), lease_s)


def replace_trainer(catalog: Catalog, name: str = "trainer") -> tuple[int, int]:
    """Two trainers, of which the second took the run over from the first; returns their generations."""
    return take_over(catalog, "the first", lease_s=OVER), take_over(catalog, name)


def oldest(count: int, again: Reuse | None = None) -> Callable[[Candidates], Choice]:
    """Choose the oldest groups, perhaps to be taken again later."""

    def choose(candidates: Candidates) -> Choice:
        groups = list(islice(candidates.by("oldest"), count))
        return Choice(groups, reuse={one.group_id: again for one in groups} if again else {})

    return choose


def claim(catalog: Catalog, step: int, generation: int, count: int = 100, max_staleness: int = 100) -> Claim:
    """Claim the oldest groups."""
    return catalog.claims.make(step, oldest(count), step - 1, max_staleness, None, generation)


def commit(catalog: Catalog, step: int, ids: Sequence[str], generation: int, loss: float = 0.5, left_out: Mapping[str, str] = {}) -> None:
    catalog.claims.commit_step(StepRow(step, "trained", step, {"loss": loss}, None, 1.0, 0.0), ids, left_out, generation)


def candidates(catalog: Catalog, order: Order = "oldest", source: str | None = None) -> list[Candidate]:
    """The groups that wait for training."""
    with catalog._database.read() as connection:
        return list(Candidates(connection).by(order, source))


def waiting(catalog: Catalog) -> list[str]:
    """Ids of the groups that wait for training, oldest first."""
    return [one.group_id for one in candidates(catalog)]
