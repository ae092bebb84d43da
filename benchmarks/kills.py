"""Many processes work on one experience table and are killed, again and again: is every write still there that was acknowledged, once?

`python -m benchmarks.kills --kills 200 --catalog sqlite` runs three explorers, two labellers, a compactor, a trainer and a reader, and
sends SIGKILL to all but the reader at random moments and at named points, until so many are dead; each is started again under its name.
What a worker did it says to the process that kills, which keeps the journal. At the end everybody stops, the run is ended as a run
ends, and the table is judged by the journal. The last line is JSON; the exit code is 1 if anything is wrong.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.torture.journal import Journal
from benchmarks.torture.judge import Verdict, finish, judge
from benchmarks.torture.killer import WORKERS, Killer
from benchmarks.torture.place import Place

Database = Literal["sqlite", "postgres"]


def torture(kills: int, place: Place, seed: int) -> tuple[dict[str, Any], Verdict]:
    """Work, kill, end, and judge.

    Args:
        kills: How many processes are killed at least.
        place: Where the run is made; a new one.
        seed: Decides who is killed, when and where.

    Returns:
        Figures, and what is wrong.
    """
    began = time.monotonic()
    journal = Journal()
    place.run_dir.create()
    killer = Killer(place, seed, journal)
    killer.run(kills)
    killed_s = time.monotonic() - began
    finish(place, journal, WORKERS)
    verdict = judge(place, journal)
    figures = {
        "kills": killer.kills.total(),
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "wrong": len(verdict.wrong),
        "sums_equal": verdict.sums_equal,
        "fsck_clean": not verdict.fsck,
        "kills_by_role": dict(sorted(killer.kills.items())),
        "kills_at_points": dict(sorted(killer.points.items())),
        "acknowledged": {
            "leases": len(journal.leases),
            "appends": len(journal.appends),
            "groups": sum(map(len, journal.appends.values())),
            "rows": sum(map(len, journal.rows.values())),
            "labels": len(journal.labels),
            "claims": len(journal.claims),
            "steps": len(journal.steps),
        },
        "fates": verdict.fates,
        "times": dict(sorted(journal.counts.items())),
        "killing_s": round(killed_s, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, verdict


def main() -> int:
    """Run the benchmark as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="how many processes are killed")
    parser.add_argument("--catalog", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--seed", type=int, default=0, help="decides who is killed, when and where")
    parser.add_argument("--folder", type=Path, help="a new folder for the run, which stays; a temporary one if left out")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the server that the workers are forked from finds what it preloads
    with _folder(options.folder) as folder, _catalog(options.catalog) as url:
        figures, verdict = torture(options.kills, Place(str(folder / "run"), url), options.seed)
    for line in verdict.lines():
        print(line, file=sys.stderr)
    print(json.dumps({"benchmark": "kills", "catalog": options.catalog, "seed": options.seed, **figures}))
    return 0 if verdict.is_good else 1


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        yield named.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="tidemill-kills-") as folder:
        yield Path(folder)


@contextmanager
def _catalog(kind: Database) -> Iterator[str | None]:
    """The URL of an empty PostgreSQL database, on the server that the tests are given or one of its own; null for SQLite."""
    if kind == "sqlite":
        yield None
        return
    from tests import servers  # here, since every worker imports this file once more

    given = os.environ.get(servers.POSTGRES)
    if given:
        with servers.fresh_database(given) as url:
            yield url
    else:
        with servers.postgres() as url:
            yield url


if __name__ == "__main__":
    sys.exit(main())
