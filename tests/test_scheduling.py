"""The simulation of `benchmarks/scheduling.py`: its clock, its load, and what each arm makes of it."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.peers.trinity_rule import Trinity
from benchmarks.scheduling import summary, targets
from benchmarks.simulation import clock, ours
from benchmarks.simulation.load import Load, Outcome, figures

SEED_WITH_STUCK = 1
"""Of its first tasks some never return."""
STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("scheduling")
    ours.prepare(made)
    return made


def test_the_clock_jumps_to_the_next_timer() -> None:
    async def nap() -> list[float]:
        loop = asyncio.get_running_loop()
        await asyncio.gather(asyncio.sleep(50_000), asyncio.sleep(100_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7):
                await asyncio.Event().wait()
        return [loop.time()]

    assert clock.run(nap()) == pytest.approx([100_007])


def test_the_clock_stands_while_something_runs_in_a_thread() -> None:
    async def work() -> tuple[float, int]:
        sleeping = asyncio.create_task(asyncio.sleep(1))
        done = sum([await asyncio.to_thread(int, "1") for _ in range(100)])
        at = asyncio.get_running_loop().time()
        await sleeping
        return at, done

    assert clock.run(work()) == (0.0, 100)


def test_what_fails_in_a_thread_fails_where_it_is_awaited() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        clock.run(asyncio.to_thread(int, "one"))


def test_waiting_for_nothing_is_an_error() -> None:
    with pytest.raises(clock.Stalled):
        clock.run(asyncio.Event().wait())


def test_the_least_time_counts_what_never_returns_as_its_deadline() -> None:
    load = Load(SEED_WITH_STUCK, steps=STEPS)
    latencies, position = [], 0
    while sum(latency is not None for latency in latencies) < STEPS * load.batch:
        latencies.append(load.latency(position))
        position += 1
    assert None in latencies
    assert load.rollout_s == pytest.approx(sum(20.0 if latency is None else latency for latency in latencies))
    assert load.least_s == pytest.approx(load.rollout_s / 8) == pytest.approx(STEPS * load.train_s)


def test_latencies_are_log_normal_with_one_in_a_hundred_stuck() -> None:
    latencies = [Load(0).latency(position) for position in range(20_000)]
    returned = sorted(latency for latency in latencies if latency is not None)
    assert 1 - len(returned) / 20_000 == pytest.approx(0.01, abs=0.002)
    assert returned[len(returned) // 2] == pytest.approx(1.0, abs=0.03)
    assert returned[int(0.8413 * len(returned))] == pytest.approx(2.2255, abs=0.07)  # exp(0.8), one sigma above


def check(load: Load, outcome: Outcome, bound: int) -> None:
    assert max(outcome.trained) <= bound
    assert (outcome.lost, outcome.duplicated) == (0, 0)
    assert outcome.wall_s >= load.least_s


@pytest.mark.parametrize(("mode", "explorers", "bound"), [("sync", 1, 0), ("one_step", 1, 1), ("async", 1, 4), ("async", 4, 4)])
def test_our_modes_lose_nothing_and_keep_their_bounds(folder: Path, mode: str, explorers: int, bound: int) -> None:
    load = Load(SEED_WITH_STUCK, steps=STEPS, stuck_frac=0.1, deadline_s=5.0)
    outcome = ours.simulate(folder, load, mode, explorers)
    check(load, outcome, bound)
    assert outcome.more["explorers"] == explorers
    assert outcome.failed > 0
    if mode == "sync":
        assert outcome.begun == STEPS * load.batch == sum(outcome.trained.values()) + outcome.failed
    else:
        assert outcome.short == 0
        assert sum(outcome.trained.values()) == STEPS * load.batch


@pytest.mark.parametrize(("sync_offset", "bound"), [(0, 0), (1, 1), (None, 4)])
def test_trinitys_rules_keep_the_staleness_that_they_promise(sync_offset: int | None, bound: int) -> None:
    async def run(load: Load) -> Outcome:
        return await Trinity(load, sync_offset).run()

    load = Load(SEED_WITH_STUCK, steps=50)
    outcome = clock.run(run(load))
    check(load, outcome, bound)
    assert sum(outcome.trained.values()) == 50 * load.batch


def test_the_last_line_has_means_and_says_which_targets_are_met() -> None:
    load = Load(0, steps=1)
    said = {
        arm: [figures(load, Outcome(wall_s * load.least_s, {behind: 8}, 8, stale)) for wall_s, behind, stale in seeds]
        for arm, seeds in {"sync": [(4.0, 0, 0), (2.0, 0, 0)], "async_1": [(1.0, 5, 0), (1.0, 4, 1)]}.items()
    }
    arms = summary(said)
    assert arms["async_1"]["speedup_over_sync"] == pytest.approx(3.0, abs=0.02)  # walls are rounded
    assert arms["async_1"]["stale_frac"] == 0.0625
    assert arms["async_1"]["max_staleness_seen"] == 5
    assert arms["async_1"]["staleness"] == {"4": 8, "5": 8}
    assert list(targets(arms, load).values()) == [True, True, False, False, True]
