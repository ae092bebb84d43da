"""The same command again: what goes on, what starts over, what is refused."""

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.rft import run_recipe
from flows.table import compact_table, open_run
from rft_core.catalog import Catalog
from rft_core.config import parse
from rft_core.errors import ConfigError, LostClaimError, RunError
from rft_core.processes import Process
from tests import loop
from tests.tiny_files import recipe


def catalog_of(values: dict[str, Any]) -> Catalog:
    return Catalog(f"sqlite:///{loop.run_dir(values).catalog_file}")


def test_an_unfinished_extension_does_not_pass_for_finished(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=2)
    loop.run_in_child(values)
    assert loop.summary(values)["steps"] == 2
    values["steps"] = 4
    assert loop.run_in_child(values, kill_at="step.after:2") == -9
    assert not loop.run_dir(values).summary_file.exists()
    assert loop.run_in_child(values) == 0
    assert loop.summary(values)["steps"] == 4
    loop.check_ledger(values)


def test_more_steps_wait_until_what_must_be_redone_is_redone(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=4, checkpoint__every=4, trainer__schedule="linear")
    assert loop.run_in_child(values, kill_at="step.after:2") == -9
    with pytest.raises(RunError, match="steps 1 to 2 of .* must be redone"):
        loop.run(values | {"steps": 8})
    assert loop.run(values)["steps"] == 4
    assert loop.run(values | {"steps": 5})["steps"] == 5


def test_the_summary_is_strict_json(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=1)
    loop.run(values)

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    json.loads(loop.run_dir(values).summary_file.read_text(), parse_constant=refuse)
    for row in catalog_of(values).claims.steps():
        assert all(value == value for value in row.metrics.values())


def test_sft_with_an_operator_that_looks_at_rewards_is_refused(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy) | {"algorithm": {"name": "sft"}, "rewards": []}
    values["rollout"] |= {"environment": {"name": "expert"}, "group_size": 1}
    with pytest.raises(ConfigError, match=r"operators\.0\.name: found 'drop_no_signal'"):
        loop.run(values)


def test_a_run_that_is_in_use_is_refused_by_name(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy)
    folder = loop.run_dir(values)
    folder.create()
    catalog = catalog_of(values)
    catalog.trainers.take_over(Process("process 7 on there", "there|7|1"))
    with pytest.raises(
        RunError, match=r"this run is being trained by process 7 on there, for 0 s, last heard of 0 s ago; stop it, or wait"
    ):
        loop.run(values)
    assert not folder.failure_file.exists(), "the run has not failed: it goes on elsewhere"
    catalog.trainers.release(1)
    loop.run(values)
    catalog.close()


def test_a_second_trainer_is_refused_until_the_first_one_is_dead(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=200)
    first = loop.FORK.Process(target=loop.run, args=(values,))
    first.start()
    catalog = None
    while catalog is None or not catalog.claims.steps():
        assert first.is_alive()
        time.sleep(0.05)
        if catalog is None and loop.run_dir(values).catalog_file.exists():
            catalog = catalog_of(values)
    with pytest.raises(RunError, match=rf"this run is being trained by process {first.pid} on .*, for \d+ s, last heard of \d+ s ago"):
        loop.run(values)
    first.kill()
    first.join()
    num_done = len(catalog.claims.steps())
    assert loop.run({**values, "steps": num_done + 1})["steps"] == num_done + 1, "a process that is known to be dead is not waited for"
    catalog.close()


def test_a_run_whose_catalog_is_gone_does_not_begin_anew(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=1)
    loop.run(values)
    catalog_file = loop.run_dir(values).catalog_file
    for left in catalog_file.parent.glob("catalog.db*"):
        left.unlink()
    with pytest.raises(RunError, match="has no catalog; restore catalog.db from a copy"):
        loop.run(values | {"steps": 2})
    assert not catalog_file.exists()
    Catalog(f"sqlite:///{catalog_file}").close()
    with pytest.raises(
        RunError, match=r"the catalog .*catalog.db knows nothing of .*; restore it from a copy, or name the one that the run has"
    ):
        loop.run(values | {"steps": 2})


def test_a_run_whose_old_rows_were_let_go_goes_on(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=3, checkpoint__every=1, checkpoint__keep=1, table={"retention": {"max_rows": 4}})
    loop.run(values)
    with open_run(loop.run_dir(values)) as run:
        assert compact_table(run, now=True).let_go > 0
    assert loop.run(values | {"steps": 4})["steps"] == 4


def test_a_trainer_that_was_replaced_says_and_leaves_nothing(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=3, checkpoint__every=1, monitor={"name": "mlflow"})

    async def train(run: str, step: int) -> dict[str, float]:
        if step == 2:
            catalog.trainers.release(1)  # as if it had been stopped for longer than its lease
            assert catalog.trainers.take_over(Process("process 7 on there", "there|7|1")) == 2
        figures: dict[str, float] = await loop.STAGES.train(run, step)
        return figures

    loop.run_dir(values).create()
    catalog = catalog_of(values)
    with pytest.raises(LostClaimError, match="process 7 on there took over this run as its trainer"):
        asyncio.run(run_recipe(parse(values), SimpleNamespace(**vars(loop.STAGES) | {"train": train})))
    assert [folder.name for folder in loop.run_dir(values).checkpoints.iterdir()] == ["000001"]
    assert not loop.run_dir(values).failure_file.exists()
    with sqlite3.connect(tmp_path / "runs" / "mlflow.db") as store:
        assert store.execute("select status from runs").fetchall() == [("RUNNING",)]
    assert catalog.versions.in_use(within_s=60.0) == set()
    catalog.close()
