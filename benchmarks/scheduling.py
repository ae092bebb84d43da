"""Scheduling under a long tail: Tidemill's modes beside Trinity-RFT's rule and AReaL's StalenessManager, on one simulated load.

`python -m benchmarks.scheduling` prints progress on stderr and one JSON line on stdout. Time is virtual: 200 steps pass in seconds.

The load: groups take log-normal times (median 1 s, sigma 0.8), 1 % never return and are given up after 20 s; 8 groups a step, 8 tried at a
time by all explorers together, 200 steps, a bound of 4 on staleness. A step's training takes what a batch takes the workers on average, so
both sides have equally much to do, which is the hardest case for overlapping them. `least` is what no schedule can beat: the larger of all
rollout time over the workers, and all training; an attempt that never returns counts as its deadline in it.

What each arm is:

- `sync`, `one_step`, `async_N` with N explorers: Tidemill's own loop, explorers, catalog on SQLite, experience table and weight store; only
  the engine and the update are simulated, see `simulation/ours.py`. `sync` trains short batches, as its recipes do, where others replace
  a group that never returned: it has about 1 % less to do.
- `trinity_sync`, `trinity_one_step`, `trinity_async`: see `peers/trinity_rule.py`.
- `areal`: see `peers/areal_worker.py`.

In the last line `wall_over_bound`, `speedup_over_sync`, `trainer_idle_frac` and `stale_frac` are means over the seeds,
`max_staleness_seen` is the highest of all, `lost`, `duplicated` and `staleness` are totals, and `seeds` holds the values of each.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.peers import areal
from benchmarks.peers.trinity_rule import Trinity
from benchmarks.simulation import clock, ours
from benchmarks.simulation.load import Load, figures

EXPLORERS = (1, 2, 4, 8)
TRINITY = {"trinity_sync": 0, "trinity_one_step": 1, "trinity_async": None}
"""The sync offset of each of its styles."""
MOST_OVER_BOUND, LEAST_SPEEDUP, MOST_STALE = 1.10, 2.0, 0.03
SUMMED: dict[str, Callable[[list[Any]], Any]] = {
    "wall_over_bound": lambda values: round(mean(values), 4),
    "speedup_over_sync": lambda values: round(mean(values), 3),
    "max_staleness_seen": max,
    "stale_frac": lambda values: round(mean(values), 4),
    "lost": sum,
    "duplicated": sum,
    "trainer_idle_frac": lambda values: round(mean(values), 4),
    "staleness": lambda values: dict(sorted(sum(map(Counter, values), Counter()).items())),
}
"""What the last line says of each arm, made of the values of the seeds."""

Found = tuple[str, int, dict[str, Any]]
"""An arm, a seed, and its figures."""


def measure(loads: list[Load], folder: Path, peers: bool) -> Iterator[Found]:
    """Every arm on every load."""
    for load in loads:
        for mode, explorers in (("sync", 1), ("one_step", 1), *(("async", number) for number in EXPLORERS)):
            name = f"async_{explorers}" if mode == "async" else mode
            yield name, load.seed, figures(load, ours.simulate(folder, load, mode, explorers))
        if peers:
            for name, offset in TRINITY.items():
                yield name, load.seed, figures(load, clock.run(Trinity(load, offset).run()))
    if peers:
        yield from (("areal", load.seed, found) for load, found in zip(loads, areal.simulate(loads), strict=True))


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What is said of each arm, given its figures by seed."""
    for seeds in found.values():
        for one, sync in zip(seeds, found["sync"], strict=True):
            one["speedup_over_sync"] = round(sync["wall_s"] / one["wall_s"], 3)
    return {
        arm: {**{name: summed([one[name] for one in seeds]) for name, summed in SUMMED.items()}, "seeds": seeds}
        for arm, seeds in found.items()
    }


def targets(arms: dict[str, dict[str, Any]], load: Load) -> dict[str, bool]:
    """Whether Tidemill does what it is to do."""
    mine = {name: arm for name, arm in arms.items() if name in ("sync", "one_step") or name.startswith("async_")}
    free = [arm for name, arm in mine.items() if name.startswith("async_")]
    bounds = {"sync": 0, "one_step": 1}
    return {
        f"async within {MOST_OVER_BOUND} of the bound": all(arm["wall_over_bound"] <= MOST_OVER_BOUND for arm in free),
        f"async {LEAST_SPEEDUP} times as fast as sync": all(arm["speedup_over_sync"] >= LEAST_SPEEDUP for arm in free),
        f"async less than {MOST_STALE} stale": all(arm["stale_frac"] < MOST_STALE for arm in free),
        "never staler than the bound": all(arm["max_staleness_seen"] <= bounds.get(name, load.bound) for name, arm in mine.items()),
        "nothing lost or duplicated": not any(arm["lost"] or arm["duplicated"] for arm in mine.values()),
    }


def main() -> None:
    """Measure, and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--no-peers", action="store_true", help="leave Trinity-RFT and AReaL out")
    parser.add_argument("--folder", type=Path, help="where the runs lie; the system's folder for temporary files if left out")
    arguments = parser.parse_args()
    loads = [Load(int(seed), steps=arguments.steps) for seed in arguments.seeds.split(",")]
    found: dict[str, list[dict[str, Any]]] = {}
    began = time.monotonic()
    with ours.prepared(arguments.folder) as folder:
        for arm, seed, said in measure(loads, folder, peers=not arguments.no_peers):
            found.setdefault(arm, []).append(said)
            print(json.dumps({"arm": arm, "seed": seed, "real_s": round(time.monotonic() - began), **said}), file=sys.stderr, flush=True)
    arms = summary(found)
    least = {str(load.seed): round(load.least_s, 2) for load in loads}
    print(json.dumps({"benchmark": "scheduling", "targets": targets(arms, loads[0]), "least_s": least, **arms}))


if __name__ == "__main__":
    main()
