"""Trinity-RFT 0.6.0's rules of who waits for whom, driving the simulated load.

Its explorer and trainer are Ray actors around GPU engines, so their rules are written again here, as its own files have them:

- A batch's groups reach the trainer together, when the last of them is done (`rollout_coordinator.finalize_train_batch`).
- `fixed` style: after a step for which `(step - sync_offset) % sync_interval == 0` the explorer lets all that it has begun end, and waits
  for newer weights (`explorer.need_sync`, `synchronizer.wait_new_model_state_dict`). Interval 1 and offset 0 are its synchronous mode,
  offset 1 its one-step mode.
- `fully_async` style: at most `max_inflight_batches`, 2, at a time; the oldest is drained first. Weights are taken over as soon as they
  are there; what is being generated goes on. The trainer reads by `staleness_control`: of a batch whose first group is older than
  `max_staleness` all groups are dropped, and so is any later group that is older (`queue.AsyncQueue.get`, `QueueStorage.get_batch`).
- Runners take tasks of the oldest batch first, in order. A group that reaches its deadline is tried again by the same runner, at most
  twice (`max_retry_times`); its `max_timeout` is set so that an attempt's deadline is that of the load.

All in its favour: its polling (every 0.1 s for results, every 0.5 s for weights, every second for a batch) is left out, since times here
are only so long as the load says.
"""

import asyncio
from collections import deque

from benchmarks.simulation.load import Ledger, Load, Outcome

MAX_RETRY_TIMES = 2
MAX_INFLIGHT_BATCHES = 2

Group = tuple[int, int]
"""Position of the task, and the version that it was begun with."""


class Trinity:
    """One explorer and one trainer, with a queue between them.

    Args:
        load: What is to be done.
        sync_offset: Of the `fixed` style; null for `fully_async`.
    """

    def __init__(self, load: Load, sync_offset: int | None) -> None:
        self._load = load
        self._sync_offset = sync_offset
        self._oldest_allowed = sync_offset is None
        self._ledger = Ledger(load)
        self._runners = asyncio.Semaphore(load.workers)  # which serves in the order of asking: oldest batch first
        self._version = 0
        self._newer = asyncio.Condition()
        self._batches: deque[list[asyncio.Task[Group | None]]] = deque()
        self._queue: asyncio.Queue[list[Group]] = asyncio.Queue()
        self._pool: deque[Group] = deque()

    async def run(self) -> Outcome:
        """Do all steps."""
        exploring = asyncio.create_task(self._explore())
        loop = asyncio.get_running_loop()
        for step in range(1, self._load.steps + 1):
            batch = await self._sample(step)
            await asyncio.sleep(self._load.train_s)
            self._ledger.train(step, batch)
            async with self._newer:
                self._version = step
                self._newer.notify_all()
        wall_s = loop.time()
        exploring.cancel()
        begun = [task for tasks in self._batches for task in tasks]
        for task in begun:
            task.cancel()
        ended = await asyncio.gather(*begun, return_exceptions=True)
        while not self._queue.empty():
            self._pool.extend(self._queue.get_nowait())
        waiting = len(self._pool) + sum(group is not None for group in ended)
        return self._ledger.outcome(wall_s, waiting)

    async def _explore(self) -> None:
        step = synced = 0
        while True:
            step += 1
            if self._sync_offset is None and len(self._batches) >= MAX_INFLIGHT_BATCHES:
                await self._finish_oldest()
            first = (step - 1) * self._load.batch
            self._ledger.begun += self._load.batch
            self._batches.append([asyncio.create_task(self._try(position)) for position in range(first, first + self._load.batch)])
            if self._sync_offset is not None and step > self._sync_offset:
                while self._batches:
                    await self._finish_oldest()
                async with self._newer:
                    await self._newer.wait_for(lambda known=synced: self._version > known)
                    synced = self._version

    async def _finish_oldest(self) -> None:
        groups = await asyncio.gather(*self._batches[0])
        self._batches.popleft()
        await self._queue.put([group for group in groups if group is not None])

    async def _try(self, position: int) -> Group | None:
        async with self._runners:
            version = self._version
            for attempt in range(MAX_RETRY_TIMES + 1):
                if await self._load.attempt(position, attempt):
                    return position, version
        self._ledger.failed += 1
        return None

    async def _sample(self, step: int) -> list[Group]:
        """`QueueStorage.get_batch`, with the oldest version that `staleness_control` lets through."""
        oldest = max(step - self._load.bound - 1, 0) if self._oldest_allowed else 0
        batch: list[Group] = []
        while True:
            while self._pool and len(batch) < self._load.batch:
                group = self._pool.popleft()
                if group[1] < oldest:
                    self._ledger.stale += 1
                else:
                    batch.append(group)
            if len(batch) == self._load.batch:
                return batch
            arrived = await self._queue.get()
            if arrived and arrived[0][1] < oldest:
                self._ledger.stale += len(arrived)
            else:
                self._pool.extend(arrived)
