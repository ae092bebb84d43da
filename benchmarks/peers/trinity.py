"""Trinity-RFT 0.6.0's SQL buffer on SQLite, measured by its own code in an environment of its own.

`python -m benchmarks.peers.trinity` makes the environment, measures, and prints one JSON line.

What was decided so that the comparison is fair:

- The rows are those of `benchmarks/rows.py`. What Trinity has no field for (temperature, ids of leases) it need not store.
- Its storage class is used without Ray (`wrap_in_ray=False`, as its own pipeline does): behind the Ray actor that is its default, one
  writer wrote 40 % less, a reader read a fifth as fast, and four writers were refused batches as well.
- The database's URL asks SQLite to wait 60 s for a lock, not the 5 s that Trinity leaves as they are: without that, four writers are
  refused batches and wrote a fifth less over six runs (`lock_timeout_s=5` shows it). Its other settings are its defaults. A database that
  was set to WAL by hand before Trinity opened it made no difference that could be told from the noise.
- Its reader takes batches of 64 as the trainer would; a whole table is read in pages of 1,000, which suit it best.
- Starting, importing, making the tables and building the experiences come before the start that all processes wait for. Its logging is
  set to errors only.
- A call that it gives up (database locked, after its own three tries) is made again at once, and counted.
"""

import json
import os
import re
import sqlite3
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.peers import environments

VERSION = "0.6.0"
REQUIREMENTS = Path(__file__).with_name("trinity.txt")
ROOT = Path(__file__).parents[2]
SEED = 20260801


def environment() -> Path:
    """The python of an environment that Trinity-RFT's buffer runs in; see `environments.environment`."""
    return environments.environment("trinity", f"trinity-rft=={VERSION}", REQUIREMENTS)


def measure(python: Path, rows: int, writers: int, readers: int, folder: Path, lock_timeout_s: float = 60.0) -> dict[str, Any]:
    """Write, read and weigh `rows` rows through Trinity-RFT's SQL buffer.

    One table is filled by the writers alone, then read once as a trainer reads and once as a whole. Where there are readers, a second one
    is filled while they read it. Every row that was read is accounted for.

    Args:
        python: What `environment` returned.
        rows: Rows of each table.
        writers: Processes that write; each takes every `writers`-th batch of 64 rows.
        readers: Processes that read while it is written, sharing the rows; 0 for none.
        folder: Where the databases lie while they are measured.
        lock_timeout_s: How long SQLite waits for a lock before it says `database is locked`; 5 where nobody asks for another.

    Returns:
        `rows`, `writers`, `readers`, `lock_timeout_s`, and
        `write_rows_per_s`: from the first start to the last commit of all writers, while the readers read;
        `write_alone_rows_per_s`: the same without readers;
        `write_p50_ms`, `write_p95_ms`, `write_max_ms`: of the calls that wrote a batch while the readers read;
        `concurrent_read_rows_per_s`: from the first start until the readers had taken every row, null without readers;
        `read_rows_per_s`: one reader takes every row of the finished table, in batches, marking them as read;
        `scan_rows_per_s`: one reader gets every row of it in pages, marking nothing;
        `bytes_per_row`: of the database's files, closed;
        `retries`: calls made again because Trinity gave up;
        `errors`: what SQLite refused, message to count, including those that Trinity's own retries healed;
        `duplicates`: rows that were handed to readers more than once.

    Raises:
        RuntimeError: A process failed, or a table that was read alone did not give every row once.
    """
    if writers < 1:
        raise ValueError("measure: at least one writer is needed")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="trinity-", dir=folder) as made, _workers(python, writers + readers, Path(made)) as workers:
        database = Path(made) / "alone.sqlite"
        filled = _run(workers, _writing(_url(database, lock_timeout_s), rows, writers))
        size = _bytes(database)
        read = _run(workers, [_job("read", _url(database, lock_timeout_s), rows)])
        scanned = _run(workers, [_job("scan", _url(database, lock_timeout_s), rows)])
        shared = _url(Path(made) / "together.sqlite", lock_timeout_s)
        taking = [_job("read", shared, (rows + nth) // readers) for nth in range(readers)]
        together = _run(workers, _writing(shared, rows, writers) + taking) if readers else filled
    _require_whole(read + scanned, rows)
    results = filled + read + scanned + (together if readers else [])
    return {
        "rows": rows,
        "writers": writers,
        "readers": readers,
        "lock_timeout_s": lock_timeout_s,
        "write_rows_per_s": _rate(rows, together[:writers], together),
        "write_alone_rows_per_s": _rate(rows, filled, filled),
        **_write_ms(together[:writers]),
        "concurrent_read_rows_per_s": _rate(rows, together[writers:], together) if readers else None,
        "read_rows_per_s": _rate(rows, read, read),
        "scan_rows_per_s": _rate(rows, scanned, scanned),
        "bytes_per_row": round(size / rows, 1),
        "retries": sum(result["retries"] for result in results),
        "errors": dict(sum((Counter(result["errors"]) for result in results), Counter())),
        "duplicates": _duplicates(together),
    }


def _require_whole(read: list[dict[str, Any]], rows: int) -> None:
    """Every row came back once from each table that was read alone."""
    for result in read:
        if sorted(result["indices"]) != list(range(rows)):
            raise RuntimeError(f"Trinity-RFT gave back {len(set(result['indices']))} of {rows} rows, {len(result['indices'])} in all")


class _Worker:
    """The near end of a `trinity_worker.py` process."""

    def __init__(self, python: Path, log: TextIO) -> None:
        near, far = os.pipe()
        environ = {"TRINITY_LOG_LEVEL": "ERROR", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            # -P: the script's folder holds a `trinity.py`, which must not stand before the package.
            [python, "-P", Path(__file__).with_name("trinity_worker.py"), str(far)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[far],
            env={**os.environ, **environ},
            text=True,
        )
        os.close(far)
        self._answers = os.fdopen(near)
        self._log = Path(log.name)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a dead worker is reported by `answer`
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            code = self._process.wait()
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
            error = next((line for line in reversed(said) if re.match(r"[\w.]+: ", line)), said[-1])
            raise RuntimeError(f"a process of Trinity-RFT ended with code {code}: {error}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()


@contextmanager
def _workers(python: Path, num: int, folder: Path) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    try:
        for nth in range(num):
            with (folder / f"{nth}.log").open("w", encoding="utf-8") as log:
                workers.append(_Worker(python, log))
        yield workers
    finally:
        for worker in workers:
            worker.close()


def _run(workers: list[_Worker], jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Does each job in a process of its own; all start together, once the last of them is ready."""
    hired = workers[: len(jobs)]
    for worker, job in zip(hired, jobs, strict=True):
        worker.tell(json.dumps(job))
        worker.answer()  # one after the other, so that the first alone makes the tables
    for worker in hired:
        worker.tell("go")
    return [worker.answer() for worker in hired]


def _job(command: str, url: str, rows: int, **more: int) -> dict[str, Any]:
    return {"command": command, "url": url, "rows": rows, "seed": SEED, **more}


def _writing(url: str, rows: int, writers: int) -> list[dict[str, Any]]:
    return [_job("write", url, rows, writer=nth, writers=writers) for nth in range(writers)]


def _rate(rows: int, finished: list[dict[str, Any]], started: list[dict[str, Any]]) -> float:
    """Rows per second, from the first of some to start until the last of some has finished."""
    took_s = max(result["finished"] for result in finished) - min(result["started"] for result in started)
    return round(float(rows / took_s), 1)


def _write_ms(results: list[dict[str, Any]]) -> dict[str, float]:
    calls = np.array(list(chain.from_iterable(result["call_s"] for result in results))) * 1000
    quantiles = {"write_p50_ms": 0.5, "write_p95_ms": 0.95, "write_max_ms": 1.0}
    return {name: round(float(np.quantile(calls, share)), 1) for name, share in quantiles.items()}


def _duplicates(results: list[dict[str, Any]]) -> int:
    indices = list(chain.from_iterable(result["indices"] for result in results))
    return len(indices) - len(set(indices))


def _url(database: Path, lock_timeout_s: float) -> str:
    return f"sqlite:///{database.resolve()}?timeout={lock_timeout_s:g}"


def _bytes(database: Path) -> int:
    """Size of a closed database, with whatever files lie beside it."""
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return sum(file.stat().st_size for file in database.parent.glob(f"{database.name}*"))


def main() -> None:
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(python, rows, writers, 1, Path(folder)) for rows in (1_000, 10_000) for writers in (1, 4)]
        results.append(measure(python, 10_000, 4, 1, Path(folder), lock_timeout_s=5))
    print(json.dumps({"benchmark": "buffer", "peer": f"trinity-rft {VERSION}", "results": results}))


if __name__ == "__main__":
    main()
