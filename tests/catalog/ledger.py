"""Short ways to fill a catalog: what the explorer and the trainer do to it, without files."""

from collections.abc import Sequence

from rft_core.catalog import Catalog, Claim, Lease, NewGroup, StepRow, StoredFile


def task_id_at(position: int) -> str:
    """Four tasks, over and over."""
    return f"task-{position % 4}"


def lease(catalog: Catalog, step: int, fresh: int, end: int | None = None) -> list[Lease]:
    return catalog.leases.issue(step, fresh, "explorer", task_id_at, end)


def group(of: Lease, status: str = "ready", lowest_version: int = 0) -> NewGroup:
    return NewGroup(f"g-{of.lease_id}", of.lease_id, 4, status, "" if status == "ready" else f"it is {status}", lowest_version)


def group_ids(leases: Sequence[Lease]) -> list[str]:
    return [group(one).group_id for one in leases]


def store(catalog: Catalog, key: str, leases: Sequence[Lease], statuses: Sequence[str] = (), rejected: str | None = None) -> StoredFile:
    """Commit a segment that holds a group for each lease."""
    file = StoredFile(f"segments/{key}.parquet", 4 * len(leases), "0" * 64)
    catalog.segments.intend(key, file.uri)
    groups = [group(one, status) for one, status in zip(leases, statuses or ["ready"] * len(leases), strict=True)]
    catalog.segments.commit(key, file, 100, "explorer", leases[0].step, 1, groups, rejected)
    return file


def claim(catalog: Catalog, step: int, ids: Sequence[str], generation: int, stale: Sequence[str] = ()) -> None:
    catalog.claims.make(Claim(step, tuple(ids), {"segment": 1}), stale, generation)


def commit(catalog: Catalog, step: int, ids: Sequence[str], generation: int, loss: float = 0.5) -> None:
    catalog.claims.commit_step(StepRow(step, "trained", step, {"loss": loss}, None, 1.0, 0.0), ids, {}, generation)
