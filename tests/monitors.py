"""A run's monitor, what to tell it, and a look into the store behind it."""

import sqlite3
from collections import Counter
from pathlib import Path

from rft_core import metrics
from rft_core.config import MonitorConfig
from rft_core.monitor import Monitor, open_monitor
from rft_core.types import Experience, StopReason

RECIPE = "name: quickstart\nsteps: 15\n"
SETTINGS = {"steps": 15, "rewards": [{"name": "exact", "weight": 1.0}], "operators": [], "rollout": {"engine": {"name": "hf"}}}
STEPS = [
    (step, 1_700_000_000.0 + step, {metrics.REWARD_MEAN: 0.1 * step, metrics.LOSS: -0.5 / step, metrics.GRAD_NORM: 3.0})
    for step in range(1, 6)
]


def opened(runs_dir: Path, run_id: str = "run-1", **config: object) -> Monitor:
    return open_monitor(MonitorConfig.model_validate(config), runs_dir, run_id, "quickstart", RECIPE, SETTINGS)


def rows(runs_dir: Path, question: str, *values: object) -> list[tuple[object, ...]]:
    """Ask the SQLite file itself, not the library that wrote it."""
    connection = sqlite3.connect(runs_dir / "mlflow.db")
    try:
        return connection.execute(question, values).fetchall()
    finally:
        connection.close()


def figures(runs_dir: Path) -> Counter[tuple[object, ...]]:
    return Counter(rows(runs_dir, "select key, step from metrics"))


def sample(number: int, reward: float | None, error: str | None = None) -> Experience:
    return Experience(
        experience_id=f"experience-{number}",
        group_id="group",
        task_id="task",
        lease_id="lease",
        attempt=number,
        turn_index=0,
        explorer="explorer-0",
        policy_version=4,
        policy_version_end=4,
        tokens=(1, 2),
        action_mask=(False, True),
        logprobs=(0.0, -0.5),
        temperature=1.0,
        prompt_length=1,
        prompt_text="Reverse: boat lion queen",
        response_text="queen lion boat",
        reward=reward,
        stop_reason=StopReason.EOS,
        reward_parts={"exact": reward or 0.0},
        error=error,
        info={"reason": "3 of 3 words are right"},
        created_at=1_700_000_100.25,
    )
