"""The same command again: what goes on, what starts over, what is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rft_core.catalog import Catalog
from rft_core.errors import ConfigError, RunError
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


HOLD = """
import fcntl, sys, time
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("process 7 on here")
file.flush()
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_that_is_in_use_is_refused_by_name(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy)
    folder = loop.run_dir(values)
    folder.create()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder.lock_file)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="is in use by process 7 on here"):
            loop.run(values)
        holder.kill()
