"""Tidemill's modes on the simulated load: its own loop, explorers, table, catalog and weight store, in virtual time.

Only the engine and the update are simulated: a group takes as long as the load says, and training sleeps. What the code itself takes,
for its files and its database, counts as nothing; what it waits for, polls included, counts in full.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tasks
from benchmarks.simulation import clock
from benchmarks.simulation.load import Load, Outcome
from benchmarks.simulation.parts import ALGORITHM, engine_of
from flows.explore import explore_run
from flows.rft import run_recipe
from rft_core.catalog import Catalog
from rft_core.config import RunConfig, parse
from rft_core.run_dir import RunDir
from tasks.choose import choose
from tasks.session import get
from tests.tiny_files import SHAPE, write_tokenizer

NUM_TASKS = 4_000
START_POLL_S = 0.01
SMALLEST = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 4}
"""The weights are published, fetched and verified, and are not asked anything."""


def prepare(folder: Path) -> None:
    """Write the policy and the tasks that all runs in a folder share."""
    torch.set_num_threads(1)
    LlamaForCausalLM(LlamaConfig(**{**SHAPE, **SMALLEST})).save_pretrained(folder / "policy")
    write_tokenizer(folder / "policy")
    lines = [json.dumps({"question": str(position), "answer": "0"}) for position in range(NUM_TASKS)]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")


def recipe(folder: Path, load: Load, mode: str, explorers: int, name: str) -> RunConfig:
    """The recipe of one arm on one load."""
    train = {"source": str(folder / "tasks.jsonl"), "order": "sequential", "format": {"prompt": "{question}", "chat": False}}
    rollout = {"batch_groups": load.batch, "group_size": 1, "max_tokens": 4, "timeout_s": load.deadline_s, "engine": engine_of(load)}
    if mode == "async":
        assert load.workers % explorers == 0, "explorers share the workers evenly"
        rollout["at_once"] = load.workers // explorers
    values: dict[str, Any] = {
        "name": name,
        "runs_dir": str(folder / "runs"),
        "mode": mode,
        "seed": load.seed,
        "steps": load.steps,
        "model": {"path": str(folder / "policy")},
        "data": {"train": train},
        "rollout": rollout,
        "algorithm": {"name": ALGORITHM},
        "sync": {"method": "checkpoint", "max_staleness": load.bound} if mode == "async" else {"method": "checkpoint"},
        "checkpoint": {"every": load.steps},
        "monitor": {"name": "memory"},
    }
    return parse(values)


def simulate(folder: Path, load: Load, mode: str, explorers: int = 1) -> Outcome:
    """Run one mode on a load, in a folder that was prepared.

    Raises:
        Stalled: Everybody waits, and nothing would ever happen again.
    """
    config = recipe(folder, load, mode, explorers, f"{mode}-{explorers}-{load.seed}")
    return clock.run(_run(config, load, explorers if mode == "async" else 0))


async def _run(config: RunConfig, load: Load, explorers: int) -> Outcome:
    seen = _Seen(load)
    async with asyncio.TaskGroup() as together:
        together.create_task(run_recipe(config, seen.stages()))
        for number in range(explorers):
            together.create_task(_explore(config, f"explorer-{number + 1}"))
    assert seen.outcome is not None, "a run that ends is concluded"
    return seen.outcome


async def _explore(config: RunConfig, name: str) -> None:
    """An explorer as `rft explore` starts it, once the trainer has begun the run."""
    run_dir = RunDir(Path(config.runs_dir) / config.name)
    while not run_dir.recipe_file.exists():  # noqa: ASYNC110  the run's folder is all that the two have in common
        await asyncio.sleep(START_POLL_S)
    await explore_run(str(run_dir.root), name)


class _Seen:
    """The stages of the loop, with training and reporting taken out, and what was seen of them."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._wall_s = 0.0
        self.outcome: Outcome | None = None

    def stages(self) -> Any:
        real = {name: getattr(tasks, name).fn for name in ("curate", "rollout", "shape", "gather")}
        return SimpleNamespace(**real, train=self._train, sync=self._sync, evaluate=_nothing, report=_nothing, conclude=self._conclude)

    async def _train(self, run: str, step: int) -> None:
        session = get(run)
        claim = session.catalog.claims.find(step)
        if claim is None:
            claim = await session.compute(choose, session, step)
        assert claim is not None, "of a batch of any size there is a claim"
        await asyncio.sleep(self._load.train_s)
        session.batches[step] = claim.group_ids, {}
        session.measured(step)

    async def _sync(self, run: str, step: int) -> None:
        await tasks.sync.fn(run, step)
        self._wall_s = asyncio.get_running_loop().time()

    async def _conclude(self, run: str) -> dict[str, Any]:
        catalog = get(run).catalog
        catalog.leases.end_run()
        fates, issued = catalog.leases.fates(), catalog.leases.num_issued()
        claims = [claim for step in range(1, self._load.steps + 1) if (claim := catalog.claims.find(step))]
        claimed = Counter(group_id for claim in claims for group_id in claim.group_ids)
        behind: Counter[int] = Counter()
        for claim in claims:
            behind.update({int(versions): groups for versions, groups in claim.snapshot["behind"].items()})
        open_still = sum(fates.get(fate, 0) for fate in ("in_flight", "ready", "pending"))
        tried, groups = _values(catalog, "groups", "task_id"), _values(catalog, "groups", "group_id")  # each task once: there are enough
        untrained = claimed.total() - fates.get("trained", 0)
        self.outcome = Outcome(
            wall_s=self._wall_s,
            trained=dict(behind),
            begun=issued,
            stale=fates.get("stale", 0),
            failed=fates.get("timed_out", 0),
            lost=issued - sum(fates.values()) + open_still + untrained,
            duplicated=claimed.total() - len({task for task, group in zip(tried, groups, strict=True) if group in claimed}),
            short=sum(len(claim.group_ids) < self._load.batch for claim in claims),
            more={"explorers": len(set(_values(catalog, "leases", "explorer"))), "fates": fates},
        )
        return {}


def _values(catalog: Catalog, table: str, column: str) -> list[Any]:
    """One column of a table of the catalog."""
    columns, rows = catalog.relation(table)
    index = list(columns).index(column)
    return [row[index] for row in rows]


async def _nothing(run: str, step: int) -> None:
    pass


@contextmanager
def prepared(parent: Path | None) -> Iterator[Path]:
    """A temporary folder with what all runs share."""
    with TemporaryDirectory(prefix="scheduling-", dir=parent) as folder:
        prepare(Path(folder))
        yield Path(folder)
