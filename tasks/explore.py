"""Explore: try tasks beside a trainer that goes on, as far ahead of it as the bound on staleness allows."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rft_core.catalog import Catalog, Lease
from rft_core.config import RunConfig
from rft_core.errors import RolloutError, WeightsError
from rft_core.explorer import Explorer, Sampling, too_many_failed
from rft_core.plan import admission, last_step
from rft_core.run_dir import RunDir
from rft_core.taskset import TaskSet
from rft_core.weights import fetch

POLL_S = 0.05
"""How often the catalog is asked whether there is room for another group, or a newer version."""


@dataclass(slots=True)
class Exploration:
    """One explorer at work on a run.

    Each group is leased, tried and stored by itself, so that one which takes long holds up no other.
    """

    config: RunConfig
    run_dir: RunDir
    catalog: Catalog
    explorer: Explorer
    base_folder: Path
    """Version 0."""
    tasks: TaskSet
    reader: str
    """Under which it says which version it uses."""
    num_groups: int = 0
    """Groups that it has stored."""
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def go_on(self) -> int:
        """Try tasks until the run's last step is done, or its task set is exhausted; returns how many groups that were.

        Raises:
            RolloutError: Of the last `batch_groups` groups too many attempts failed; says for which reasons.
        """
        rollout = self.config.rollout
        recent: deque[list[str | None]] = deque(maxlen=rollout.batch_groups)
        busy: set[asyncio.Task[list[str | None]]] = set()
        try:
            while not self._is_over():
                await self.follow()
                busy |= {
                    asyncio.create_task(self._try(lease)) for lease in self._lease((rollout.at_once or rollout.batch_groups) - len(busy))
                }
                done, busy = await asyncio.wait(busy, timeout=POLL_S, return_when="FIRST_COMPLETED") if busy else (set(), busy)
                if not busy and not done:
                    await asyncio.sleep(POLL_S)
                recent.extend(one.result() for one in done)
                self.num_groups += len(done)
                if len(recent) == recent.maxlen:
                    _require_some_success(recent, rollout.max_failed_frac)
        finally:
            for one in busy:
                one.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
        return self.num_groups

    async def follow(self) -> None:
        """Load the newest published version, unless it is loaded; what is being generated ends under the version that it began with.

        Raises:
            WeightsError: Its files are torn or altered.
        """
        async with self._loading:
            while (newest := self.catalog.versions.newest()) != self.explorer.engine.version:
                self.catalog.versions.acknowledge(self.reader, newest)  # first, so that it is not collected meanwhile
                try:
                    folder = fetch(self.run_dir, self.catalog.versions.find(newest), newest) if newest else self.base_folder
                except WeightsError:
                    if self.catalog.versions.newest() == newest:
                        raise
                    continue
                await self.explorer.engine.load(newest, folder)

    def _lease(self, most: int) -> list[Lease]:
        if most <= 0:
            return []
        rules = admission(self.config)
        return self.catalog.leases.admit(
            self.explorer.name, most, self.explorer.engine.version, rules, lambda position: self.tasks.at(position).task_id, self._end
        )

    async def _try(self, lease: Lease) -> list[str | None]:
        rollout = self.config.rollout
        sampling = Sampling(rollout.temperature, rollout.max_tokens, rollout.timeout_s)
        return await self.explorer.try_one(lease, self.tasks.at(lease.position), rollout.group_size, sampling)

    @property
    def _end(self) -> int | None:
        return None if self.config.epochs is None else self.config.epochs * len(self.tasks)

    def _is_over(self) -> bool:
        committed = self.catalog.claims.last_committed()
        return committed >= last_step(self.config, len(self.tasks)) or self.catalog.leases.is_exhausted(self._end)


def _require_some_success(recent: deque[list[str | None]], max_failed_frac: float) -> None:
    failure = too_many_failed([error for errors in recent for error in errors], max_failed_frac)
    if failure is not None:
        raise RolloutError(f"of the last {len(recent)} groups {failure}")
