"""What a command came to, and the table of a run to try commands on."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from rft_core.catalog import StepRow
from rft_core.disk import write_whole
from rft_core.processes import this_process
from rft_core.trainer import manifest
from rft_core.weights import WeightStore
from tests.buffer.table import Table


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        return self.err.splitlines()


Rft = Callable[..., Done]


def trained(table: Table, steps: int = 2) -> None:
    """Some steps, of two groups each, with their weights and checkpoints; the trainer has ended."""
    generation = table.catalog.trainers.take_over(this_process())
    for step in range(1, steps + 1):
        table.append(f"step-{step}", table.lease(2, step))
        table.shape()
        claim = table.claim(step, generation, 2)
        folder = table.run_dir.checkpoint(step)
        write_whole(folder / "model" / "config.json", f"{step}")
        files = {"model/config.json": {"bytes": 1, "sha256": manifest.file_sha256(folder / "model" / "config.json")}}
        write_whole(folder / "manifest.json", json.dumps({"format": 1, "step": step, "files": files}))
        WeightStore(table.run_dir, table.catalog, generation, "tiny").publish(step, step, folder / "model")
        commit = StepRow(step, "trained", step, {"trainer/loss": 0.5}, None, 1.0, 0.0)
        table.catalog.claims.commit_step(commit, claim.group_ids, {}, generation)
    table.catalog.trainers.release(generation)
