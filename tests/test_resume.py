"""The same command again: what goes on, what starts over, what is refused."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rft_core.catalog import Catalog
from rft_core.errors import ConfigError, RunError
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
