"""The experience table: append, claim, priority update and full read, beside Trinity-RFT's SQL buffer on the same rows.

`python benchmarks/buffer.py` prints progress on stderr and one JSON line on stdout. Ratios are Tidemill's over Trinity-RFT's, at 10,000
rows, 4 writers and 1 reader, both measured in this run. What a writer does for a batch of 64 rows is timed whole: leasing its 8 tasks,
writing the segment, committing it. Rows are made, and each process has made one append and one read elsewhere, before the clock starts.

`read_ratio` is a full read of the filled table over what Trinity's trainer reads with, `read`; `concurrent_read_ratio` the same while the
4 writers write; `scan_ratio` a full read over its quickest way through a table, pages of 1,000 rows by `query`.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import rows as made
from benchmarks.peers import trinity
from rft_core.buffer import ExperienceStore, Questions, Terms, Wanted, chooser, selectors
from rft_core.catalog import Catalog
from rft_core.processes import this_process
from rft_core.storage import open_storage
from rft_core.types import Experience, StopReason, digest
from tests import servers

SEED = trinity.SEED
CLAIM_GROUPS = 64
CLAIMS = 40
RATIO_ROWS, RATIO_WRITERS = 10_000, 4
POOL_ROWS = 2048
"""Different rows that a large table is made of, over and over under new ids: making a million would take longer than storing them."""
SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Place:
    """Where a table is."""

    folder: Path
    url: str

    def catalog(self) -> Catalog:
        return Catalog(self.url)

    def store(self, catalog: Catalog) -> ExperienceStore:
        score = selectors.build("priority", {}, "selection").score
        return ExperienceStore(open_storage(self.folder), catalog, Terms(score=score))


def experience(row: dict[str, Any], lease_id: str = "", task_id: str = "") -> Experience:
    """A row of the benchmark as Tidemill stores it."""
    group_id = digest("group", lease_id)
    return Experience(
        experience_id=digest("experience", group_id, row["attempt"]),
        group_id=group_id,
        task_id=task_id,
        lease_id=lease_id,
        attempt=row["attempt"],
        turn_index=0,
        explorer="benchmark",
        policy_version=row["policy_version"],
        policy_version_end=row["policy_version"],
        tokens=tuple(row["tokens"]),
        action_mask=tuple(row["action_mask"]),
        logprobs=(0.0,) * made.PROMPT_TOKENS + tuple(row["logprobs"]),
        temperature=row["temperature"],
        prompt_length=row["prompt_length"],
        prompt_text=row["prompt_text"],
        response_text=row["response_text"],
        reward=row["reward"],
        stop_reason=StopReason(row["stop_reason"]),
    )


def append(catalog: Catalog, store: ExperienceStore, pool: list[Experience], batch: int, writer: str) -> None:
    """What an explorer does for a batch of 64 rows: lease 8 tasks, and store 8 attempts at each."""
    content = [pool[(batch * made.BATCH_ROWS + offset) % len(pool)] for offset in range(made.BATCH_ROWS)]
    leases = catalog.leases.issue(batch + 1, made.BATCH_ROWS // made.GROUP_SIZE, writer, lambda position: f"task-{position}", None)
    rows = [
        replace(
            row,
            lease_id=lease.lease_id,
            task_id=lease.task_id,
            group_id=digest("group", lease.lease_id),
            attempt=attempt,
            policy_version=batch,
            experience_id=digest("experience", lease.lease_id, attempt),
        )
        for lease, eight in zip(leases, _eights(content), strict=True)
        for attempt, row in enumerate(eight)
    ]
    store.append(f"batch-{batch}", rows, writer, batch + 1)


def warm_up(pool: list[Experience]) -> None:
    """Load and compile what the first append and the first read need, on a table that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Place(Path(folder), f"sqlite:///{folder}/catalog.db")
        catalog = scratch.catalog()
        store = scratch.store(catalog)
        append(catalog, store, pool, 0, "warm-up")
        list(store.scan([file for _, file in catalog.segments.files()]))
        catalog.close()


def write(place: Place, name: int, writers: int, num_rows: int, start: Barrier, results: Any) -> None:
    """One writer: every `writers`-th batch of the table."""
    pool = [experience(row) for row in made.rows(min(num_rows, POOL_ROWS), SEED)]
    warm_up(pool)
    catalog = place.catalog()
    store = place.store(catalog)
    start.wait()
    began, took = time.time(), []
    for batch in range(name, num_rows // made.BATCH_ROWS, writers):
        before = time.perf_counter()
        append(catalog, store, pool, batch, f"writer-{name}")
        took.append(time.perf_counter() - before)
    results.put((began, time.time(), took))


def read(place: Place, num_rows: int, start: Barrier, results: Any) -> None:
    """One reader: gets every row once, as segments appear."""
    warm_up([experience(row) for row in made.rows(made.BATCH_ROWS, SEED)])
    catalog = place.catalog()
    store = place.store(catalog)
    start.wait()
    began, seen, num_read = time.time(), set[str](), 0
    while num_read < num_rows:
        fresh = [(key, file) for key, file in catalog.segments.files() if key not in seen]
        num_read += sum(len(found["experience_id"]) for found in store.scan([file for _, file in fresh]))
        seen.update(key for key, _ in fresh)
        if not fresh:
            time.sleep(0.005)
    results.put((began, time.time(), []))


def fill(place: Place, num_rows: int, writers: int) -> dict[str, float]:
    """Fill a table while a reader reads it; returns rates and latencies."""
    start, results = SPAWN.Barrier(writers + 1), SPAWN.Queue()
    place.catalog().close()
    processes = [SPAWN.Process(target=write, args=(place, name, writers, num_rows, start, results)) for name in range(writers)]
    processes.append(SPAWN.Process(target=read, args=(place, num_rows, start, results)))
    for process in processes:
        process.start()
    reports = [results.get(timeout=3600) for _ in processes]
    for process in processes:
        process.join()
    wrote = [report for report in reports if report[2]]
    began = min(report[0] for report in reports)
    took = sorted(1000 * seconds for report in wrote for seconds in report[2])
    return {
        "write_rows_per_s": round(num_rows / (max(report[1] for report in wrote) - began)),
        "concurrent_read_rows_per_s": round(num_rows / (max(report[1] for report in reports) - began)),
        "append_p50_ms": round(statistics.median(took), 2),
        "append_p99_ms": round(took[int(0.99 * (len(took) - 1))], 2),
    }


def read_all(place: Place, num_rows: int) -> float:
    """Rows a second of a full read: whole rows, verified and decoded to arrays."""
    warm_up([experience(row) for row in made.rows(made.BATCH_ROWS, SEED)])
    catalog = place.catalog()
    store = place.store(catalog)
    before = time.perf_counter()
    found = sum(len(part["experience_id"]) for part in store.scan([file for _, file in catalog.segments.files()]))
    took = time.perf_counter() - before
    assert found == num_rows, f"{found} of {num_rows} rows"
    catalog.close()
    return round(num_rows / took)


def claim(place: Place, num_groups: int, results: Any) -> None:
    """In a process of its own: claims of 64 groups, priority updates, and its memory."""
    catalog = place.catalog()
    storage = open_storage(place.folder)
    generation = catalog.trainers.take_over(this_process())
    figures: dict[str, Any] = {}
    steps = iter(range(1, 10_000))
    for name, args in (("oldest_first", {}), ("priority", {"max_uses": 1_000_000})):
        selector = selectors.build(name, args, "selection")
        took = []
        for step in islice(steps, min(CLAIMS, num_groups // CLAIM_GROUPS // 2)):
            before = time.perf_counter()
            choose = chooser(selector, Wanted(step, CLAIM_GROUPS), None, skip_short=False)
            found = catalog.claims.make(step, choose, 10_000_000, 10_000_000, None, generation)
            took.append(1000 * (time.perf_counter() - before))
            assert len(found.group_ids) == CLAIM_GROUPS
            before = time.perf_counter()
            catalog.labels.prioritise(dict.fromkeys(found.group_ids, 0.5))
            figures.setdefault("prioritise_ms", []).append(1000 * (time.perf_counter() - before))
        figures[name] = took
    figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if num_groups >= 2 * CLAIM_GROUPS:
        before = time.perf_counter()
        matching = Questions(storage, catalog, None).groups_where("reward > 0")
        choose = chooser(selectors.build("oldest_first", {}, "selection"), Wanted(next(steps), CLAIM_GROUPS), matching, skip_short=False)
        catalog.claims.make(9_999, choose, 10_000_000, 10_000_000, None, generation)
        figures["where"] = [1000 * (time.perf_counter() - before)]
    results.put(figures)


def measure_claims(place: Place, num_rows: int) -> dict[str, Any]:
    """Medians and 99th percentiles of claims, in milliseconds."""
    results = SPAWN.Queue()
    process = SPAWN.Process(target=claim, args=(place, num_rows // made.GROUP_SIZE, results))
    process.start()
    figures = results.get(timeout=3600)
    process.join()
    timed = {name: sorted(took) for name, took in figures.items() if isinstance(took, list) and took}
    return {
        "p50": {name: round(statistics.median(took), 2) for name, took in timed.items()},
        "p99": {name: round(took[int(0.99 * (len(took) - 1))], 2) for name, took in timed.items()},
        "rss_mb": round(figures["rss_mb"]),
    }


@contextmanager
def place(kind: str, folder: Path, postgres_url: str | None) -> Iterator[Place]:
    """A new, empty table whose catalog is of a kind."""
    with tempfile.TemporaryDirectory(prefix="table-", dir=folder) as made_folder, ExitStack() as stack:
        if kind == "sqlite":
            yield Place(Path(made_folder), f"sqlite:///{made_folder}/catalog.db")
        else:
            assert postgres_url is not None
            yield Place(Path(made_folder), stack.enter_context(servers.fresh_database(postgres_url)))


def bytes_per_row(where: Place, num_rows: int) -> float:
    """Bytes of everything that the table has on disk, its SQLite catalog included."""
    return round(sum(path.stat().st_size for path in where.folder.rglob("*") if path.is_file()) / num_rows, 1)


def measure(kind: str, num_rows: int, writers: int, folder: Path, postgres_url: str | None) -> dict[str, Any]:
    """Everything about one table."""
    with place(kind, folder, postgres_url) as where:
        found = {"catalog": kind, "rows": num_rows, "writers": writers, **fill(where, num_rows, writers)}
        found["bytes_per_row"] = bytes_per_row(where, num_rows)
        found["read_rows_per_s"] = read_all(where, num_rows)
        found["claims"] = measure_claims(where, num_rows)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1024,10048,100032,1000000", help="sizes of the table, multiples of 64")
    parser.add_argument("--catalogs", default="sqlite,postgres")
    parser.add_argument("--no-peer", action="store_true", help="leave Trinity-RFT out, and the ratios")
    parser.add_argument("--folder", type=Path, help="where the tables lie; the system's folder for temporary files if left out")
    arguments = parser.parse_args()
    sizes, kinds = [int(size) for size in arguments.rows.split(",")], arguments.catalogs.split(",")
    with ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        postgres_url = stack.enter_context(servers.postgres()) if "postgres" in kinds else None
        results = [
            measure(kind, size, writers, folder, postgres_url)
            for size in sizes
            for kind in kinds
            for writers in ((1, RATIO_WRITERS) if size < 100_000 else (RATIO_WRITERS,))
        ]
        peer = {} if arguments.no_peer else trinity.measure(trinity.environment(), RATIO_ROWS, RATIO_WRITERS, 1, folder)
        ours = measure("sqlite", RATIO_ROWS // made.BATCH_ROWS * made.BATCH_ROWS, RATIO_WRITERS, folder, None) if peer else {}
    print(json.dumps(summary(results, ours, peer)))


def summary(results: list[dict[str, Any]], ours: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """The last line: ratios to the peer, and claims by size and catalog."""
    four = [result for result in results if result["writers"] == RATIO_WRITERS]
    line: dict[str, Any] = {
        "benchmark": "buffer",
        "compared": f"Tidemill with trinity-rft {trinity.VERSION}: SQLite, 10,000 rows, 4 writers, 1 reader",
    }
    if peer:
        line |= {
            "write_ratio": round(ours["write_rows_per_s"] / peer["write_rows_per_s"], 2),
            "read_ratio": round(ours["read_rows_per_s"] / peer["read_rows_per_s"], 2),
            "concurrent_read_ratio": round(ours["concurrent_read_rows_per_s"] / peer["concurrent_read_rows_per_s"], 2),
            "scan_ratio": round(ours["read_rows_per_s"] / peer["scan_rows_per_s"], 2),
            "bytes_ratio": round(ours["bytes_per_row"] / peer["bytes_per_row"], 3),
        }
    line["claim_p50_ms"] = {
        kind: {str(r["rows"]): r["claims"]["p50"] for r in four if r["catalog"] == kind} for kind in ("sqlite", "postgres")
    }
    line["claim_p99_ms"] = {
        kind: {str(r["rows"]): r["claims"]["p99"] for r in four if r["catalog"] == kind} for kind in ("sqlite", "postgres")
    }
    line["claim_rss_mb"] = max((result["claims"]["rss_mb"] for result in results), default=None)
    return {**line, "tidemill": ours, "trinity": peer, "results": results}


def _eights(content: list[Experience]) -> Iterator[list[Experience]]:
    for first in range(0, len(content), made.GROUP_SIZE):
        yield content[first : first + made.GROUP_SIZE]


if __name__ == "__main__":
    main()
