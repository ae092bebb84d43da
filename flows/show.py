"""What people are shown of runs: how one stands, questions in SQL, exports, and the last words of `rft run`."""

import os
import shlex
import shutil
from pathlib import Path
from typing import Any

from flows.terminal import program, table
from rft_core.buffer import Questions, read_answers
from rft_core.catalog import HELD_OUT, Catalog, best
from rft_core.config import RunConfig, read_recipe
from rft_core.errors import UserError
from rft_core.monitor import review_command
from rft_core.operators.apply import pipeline_version
from rft_core.run_dir import RunDir, folder_written_whole, no_space
from rft_core.weights import fetch, newest_complete

ANSWERS_SHOWN = 3
QUESTION = "select step, avg(reward) from experiences group by 1 order by 1"
"""What people are shown to ask a run first."""


def open_catalog(run_dir: RunDir) -> Catalog:
    """The catalog of a run that has one.

    Raises:
        UserError: The run was never opened.
    """
    if not run_dir.catalog_file.exists():
        raise UserError(f"{run_dir.root} has no catalog yet", "the run must have started once")
    return Catalog(f"sqlite:///{run_dir.catalog_file}")


def questions(run_dir: RunDir) -> Questions:
    """A run, ready to be asked in SQL."""
    return Questions(run_dir, open_catalog(run_dir), pipeline_version(read_recipe(run_dir.recipe_file).operators))


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """One line a run."""
    listed = []
    for file in sorted(runs_dir.glob("*/run.json")):
        run_dir = RunDir(file.parent)
        steps = open_catalog(run_dir).claims.steps() if run_dir.catalog_file.exists() else []
        listed.append({"run": run_dir.name, "steps": len(steps), "run_id": run_dir.run_id})
    return listed


def describe(run_dir: RunDir) -> dict[str, Any]:
    """How a run stands, as plain values."""
    catalog = open_catalog(run_dir)
    config = read_recipe(run_dir.recipe_file)
    steps = catalog.claims.steps()
    newest = steps[-1] if steps else None
    return {
        "run": run_dir.name,
        "run_id": run_dir.run_id,
        "mode": config.mode,
        "algorithm": config.algorithm.name,
        "steps": f"{len(steps)} of {config.steps}",
        "failed": run_dir.failure_file.read_text().strip() if run_dir.failure_file.exists() else None,
        "last_step": dict(newest.metrics) if newest else {},
        "fates": catalog.leases.fates(),
        "leases": catalog.leases.num_issued(),
        "versions": [{"version": v.version, "files": v.uri or "-"} for v in catalog.versions.all() if v.uri or v.version == 0],
        "evaluations": [
            {"version": e.version, **{k.removeprefix("evaluation/"): v for k, v in e.metrics.items()}}
            for e in catalog.versions.evaluations(HELD_OUT)
        ],
        "segments": len(catalog.segments.files()),
        "megabytes": round(_num_bytes(run_dir.root) / 1e6, 1),
    }


def _num_bytes(root: Path) -> int:
    """Bytes that a folder's files take; one that is linked twice counts once, and one that is removed meanwhile not at all."""
    sizes: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                facts = os.stat(Path(folder, name), follow_symlinks=False)  # noqa: PTH116  one call for all three
            except FileNotFoundError:
                continue
            sizes[facts.st_dev, facts.st_ino] = facts.st_size
    return sum(sizes.values())


def render(shown: dict[str, Any] | list[dict[str, Any]]) -> str:
    """What `rft show` prints."""
    if isinstance(shown, list):
        return table(list(shown)) if shown else "no runs here; `make quickstart` or `rft run RECIPE` makes one"
    parts = [
        f"{key.replace('_', ' ')}: {value}" for key, value in shown.items() if value is not None and not isinstance(value, dict | list)
    ]
    for key, value in shown.items():
        rows = [{"name": k, "value": v} for k, v in value.items()] if isinstance(value, dict) else value
        if isinstance(rows, list) and rows:
            parts.append(f"\n{key.replace('_', ' ')}\n{table(rows)}")
    return "\n".join(parts)


def export_version(run_dir: RunDir, wanted: str, target: Path) -> int:
    """Copy a version as a Hugging Face folder; returns its number.

    Args:
        run_dir: The run.
        wanted: A number, `newest`, or `best`.
        target: A folder that is not there yet.

    Raises:
        UserError: The target is there or can't be written, or `wanted` names nothing.
        WeightsError: The version has no whole files.
    """
    if target.exists():
        raise UserError(f"{target} is there already", "name a new folder")
    versions = open_catalog(run_dir).versions
    if wanted == "newest":
        number, folder = newest_complete(run_dir, versions.all())
    elif wanted == "best":
        number = best_of(open_catalog(run_dir))
        folder = fetch(run_dir, versions.find(number), number)
    elif wanted.isdigit():
        number = int(wanted)
        folder = fetch(run_dir, versions.find(number), number)
    else:
        raise UserError(f"--version {wanted}", "a number, `newest` or `best` is right")
    try:
        with folder_written_whole(target) as copy:
            shutil.copytree(folder, copy, dirs_exist_ok=True)
    except OSError as error:
        raise no_space(error, target.parent) from None
    return number


def best_of(catalog: Catalog) -> int:
    """The version that scored best on the held-out tasks.

    Raises:
        UserError: None was scored.
    """
    version = best(catalog.versions.evaluations(HELD_OUT))
    if version is None:
        raise UserError("no version of this run was scored", "give the recipe `data.evaluation`, or name a version")
    return version


def closing_words(config: RunConfig, summary: dict[str, Any]) -> str:
    """What `rft run` says at its end: before and after, three answers, and where to look."""
    run_dir = RunDir(Path(config.runs_dir) / config.name)
    parts = []
    if summary["eval_before"]:
        rows = [{"held-out tasks": label, **summary[key]} for label, key in (("before", "eval_before"), ("after", "eval_after"))]
        parts += [table(rows), "", *_three_answers(run_dir), ""]
    parts.append(
        f"{summary['steps']} steps, training {summary['train_wall_s']:.0f} s, "
        f"of it orchestration {summary['orchestration_frac']:.1%}; fates {summary['fates']}"
    )
    return "\n".join([*parts, "", "look closer:", *(f"  {command}" for command in commands(config))])


def commands(config: RunConfig) -> list[str]:
    """What to type next, as it works in this folder."""
    rft = program("rft")
    run = config.name if Path(config.runs_dir) == Path("runs") else shlex.quote(str(Path(config.runs_dir) / config.name))
    review = review_command(config.monitor, Path(config.runs_dir), program("mlflow"))
    return [
        f"{rft} show {run}",
        f'{rft} sql {run} "{QUESTION}"',
        *([review] if review else []),
        f"{program('prefect')} server start     # then open http://127.0.0.1:4200 for the flow runs and their artifacts",
    ]


def _three_answers(run_dir: RunDir) -> list[str]:
    """Answers to tasks that were asked before and after; the two evaluations may have other tasks."""
    scored = open_catalog(run_dir).versions.evaluations(HELD_OUT)
    before, after = (read_answers(run_dir, scored[index].uri) for index in (0, -1))
    old = {row["task_id"]: row["response_text"] for row in before}
    rows = [
        {"task": row["prompt_text"], "right": row["answer"], "before": old[row["task_id"]][:60], "after": row["response_text"][:60]}
        for row in after
        if row["task_id"] in old
    ]
    return [table(rows[:ANSWERS_SHOWN])] if rows else []
