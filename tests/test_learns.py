"""A tiny policy gets better at its task, by each algorithm."""

from pathlib import Path

import pytest

from rft_core.catalog import Catalog
from tests import loop
from tests.tiny_files import recipe


@pytest.fixture
def untaught_policy(tmp_path: Path) -> Path:
    """The tiny policy before it was taught anything."""
    from tests.tiny import new_model, write_tokenizer

    folder = tmp_path / "untaught"
    new_model().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def rewards_by_step(values: dict[str, object]) -> list[float]:
    catalog = Catalog(f"sqlite:///{loop.run_dir(values).catalog_file}")
    return [row.metrics["rollout/reward_mean"] for row in catalog.claims.steps()]


def test_grpo_learns_small_sums(tmp_path: Path, tiny_policy: Path) -> None:
    values = recipe(tmp_path, tiny_policy, steps=40, checkpoint__every=40, rollout__batch_groups=12, rollout__group_size=8)
    loop.run(values)
    rewards = rewards_by_step(values)
    assert sum(rewards[-5:]) / 5 >= sum(rewards[:3]) / 3 + 0.25


def test_sft_learns_from_expert_rows(tmp_path: Path, untaught_policy: Path) -> None:
    values = recipe(tmp_path, untaught_policy, steps=60, checkpoint__every=60, evaluation__num_tasks=36, trainer__learning_rate=3e-3)
    values |= {"algorithm": {"name": "sft"}, "rewards": [], "operators": []}
    values["rollout"] = {"environment": {"name": "expert"}, "batch_groups": 36, "group_size": 1, "max_tokens": 4}
    summary = loop.run(values)
    assert summary["eval_before"]["exact"] < 0.2
    assert summary["eval_after"]["exact"] > 0.7
    assert summary["fates"] == {"trained": 60 * 36}
