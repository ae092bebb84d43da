"""Drives the simulated load by AReaL's own StalenessManager, in AReaL's environment; `areal.py` starts it.

Around that class stands what `areal/infra/workflow_executor.py` (`BatchTaskDispatcher`, `WorkflowExecutor`) does with it: a rollout is
begun while the manager has capacity, is accepted when it returns and rejected when it fails; a step takes as many results as it lacks, the
first-begun of those that are there once they are so many, and asks for more where some were rejected. Nothing looks at how old a result is
when it is taken. In its favour inputs never run out, and its polling is left out.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from areal import StalenessManager

from benchmarks.simulation import clock
from benchmarks.simulation.load import Ledger, Load, figures

Result = tuple[int, int, bool]
"""Position of the task, the version that it was begun with, and whether it returned."""


class Areal:
    """Rollouts under a manager's capacity, and a trainer that takes their results."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._ledger = Ledger(load)
        self._version = 0
        self._manager = StalenessManager(self, load.workers, load.batch, load.bound)
        self._running: set[asyncio.Task[None]] = set()
        self._results: list[Result] = []
        self._arrived = asyncio.Event()

    def get_version(self) -> int:
        """For the manager: the newest version, which every rollout that is begun uses."""
        return self._version

    async def run(self) -> dict[str, object]:
        """Do all steps."""
        loop = asyncio.get_running_loop()
        for step in range(1, self._load.steps + 1):
            self._submit()
            batch: list[tuple[int, int]] = []
            while len(batch) < self._load.batch:
                taken = await self._wait(self._load.batch - len(batch))
                batch += [(position, version) for position, version, returned in taken if returned]
            await asyncio.sleep(self._load.train_s)
            self._ledger.train(step, batch)
            self._version = step
        wall_s = loop.time()
        for task in self._running:
            task.cancel()
        waiting = len(self._running) + sum(returned for _, _, returned in self._results)
        return figures(self._load, self._ledger.outcome(wall_s, waiting))

    def _submit(self) -> None:
        while self._manager.get_capacity() > 0:
            self._manager.on_rollout_enqueued()
            self._manager.on_rollout_submitted()
            task = asyncio.create_task(self._rollout(self._ledger.begun, self._version))
            self._ledger.begun += 1
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _rollout(self, position: int, version: int) -> None:
        returned = await self._load.attempt(position)
        if returned:
            self._manager.on_rollout_accepted()
        else:
            self._manager.on_rollout_rejected()
            self._ledger.failed += 1
        self._results.append((position, version, returned))
        self._arrived.set()
        self._submit()

    async def _wait(self, count: int) -> list[Result]:
        while len(self._results) < count:
            self._arrived.clear()
            await self._arrived.wait()
        self._results.sort()
        taken, self._results = self._results[:count], self._results[count:]
        return taken


def main() -> None:
    """Read loads, one a line, and answer each with one line."""
    for line in sys.stdin:
        load = Load(**json.loads(line))
        print(json.dumps(clock.run(Areal(load).run())), flush=True)


if __name__ == "__main__":
    main()
