"""Public reports about configurations that were accepted and then broke something. Each test cites its report."""

from pathlib import Path
from typing import Any

import pytest

from rft_core.config import parse
from rft_core.errors import ConfigError
from rft_core.plan import resolve
from tests.tiny_files import recipe


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"trainer__mini_batch_groups": 3}, "trainer.mini_batch_groups: found 3; "),
        ({"trainer__mini_batch_groups": 8}, "trainer.mini_batch_groups: found 8; "),
    ],
)
def test_b14_a_batch_that_splits_groups_is_refused_before_anything_runs(
    changes: dict[str, Any], key: str, tmp_path: Path, tiny_shape: Path
) -> None:
    """trl PR #6411 (#3842): a batch that was cut to 2 with groups of 4 was accepted, and compared halves of groups."""
    with pytest.raises(ConfigError, match="mini-batches hold whole groups of equal number: a divisor of rollout.batch_groups 4") as raised:
        resolve(parse(recipe(tmp_path, tiny_shape, **changes)))
    assert str(raised.value).startswith(key)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("mini_batch_groups", [1, 2, 4])
@pytest.mark.parametrize("micro_batch_tokens", [1, 7, 100_000])
def test_b14_batches_of_whole_groups_are_fine(mini_batch_groups: int, micro_batch_tokens: int, tmp_path: Path, tiny_shape: Path) -> None:
    """trl PR #6411 (#3842): sizes are counted in groups, and what passes the model at once is no part of the batch."""
    changes = {"trainer__mini_batch_groups": mini_batch_groups, "trainer__micro_batch_tokens": micro_batch_tokens}
    plan = resolve(parse(recipe(tmp_path, tiny_shape, **changes)))
    derived = {one.name: one.value for one in plan.derived}
    assert derived["attempts a step"] == "16"
    assert derived["optimizer updates a step"] == str(4 // mini_batch_groups)


def test_b14_a_group_of_one_is_refused(tmp_path: Path, tiny_shape: Path) -> None:
    """trl PR #6411 (#3842): the smallest way to split a group."""
    with pytest.raises(ConfigError, match="rollout.group_size: found 1; grpo compares attempts of a group: at least 2"):
        resolve(parse(recipe(tmp_path, tiny_shape, rollout__group_size=1)))
