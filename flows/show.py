"""`rft show`: how runs stand, and the last words of `rft run`."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.table import OpenRun, open_run
from flows.terminal import duration, program, table
from rft_core.buffer import files, read_answers
from rft_core.buffer.scan import amiss
from rft_core.catalog import HELD_OUT, Standing
from rft_core.config import RunConfig
from rft_core.errors import UserError
from rft_core.monitor import review_command
from rft_core.run_dir import OVERLAYS, SEGMENTS, RunDir

ANSWERS_SHOWN = 3
QUESTION = "select step, avg(reward) from experiences group by 1 order by 1"
"""What people are shown to ask a run first."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What the next step depends on."""

    done: int
    """Committed steps."""
    steps: int
    """Steps of the recipe."""
    wanted: int
    """Groups of a full batch."""
    ready: int = 0
    """Groups that wait for training."""
    in_flight: int = 0
    """Leases."""
    shaping: int = 0
    """Groups that wait for the run's operators."""
    labels: int = 0
    """Groups that wait for labels."""
    due_in_s: float | None = None
    """Until the first of these is settled without them; null: never."""
    claimed: bool = False
    """Whether the next step has its batch."""
    ended: bool = False
    """Whether the run ended, which it may before its last step where its tasks are exhausted."""
    trained_by: str | None = None
    """The trainer; null if none is at work."""


def waits_for(counts: Counts) -> str:
    """What the trainer waits for now."""
    if counts.ended or counts.done >= counts.steps:
        return "nothing, the run is completed"
    if counts.trained_by is None:
        return f"the trainer is not running; step {counts.done + 1} is the next"
    if counts.claimed:
        return f"nothing: step {counts.done + 1} has its batch"
    ready = f"{counts.ready} ready of {counts.wanted}"
    if counts.ready >= counts.wanted:
        return f"nothing: {ready}"
    due = "" if counts.due_in_s is None else f", the next due in {duration(max(counts.due_in_s, 0.0))}"
    labels = f"labels of {counts.labels} groups{due}"
    if counts.labels and not counts.in_flight and not counts.shaping:
        return f"{labels}: {ready}"
    coming = {"leases in flight": counts.in_flight, "groups to shape": counts.shaping}
    details = [f"{number} {what}" for what, number in coming.items() if number] + ([labels] if counts.labels else [])
    return f"{counts.wanted - counts.ready} more groups: {ready}" + "".join(f", {detail}" for detail in details)


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """One line a run."""
    return [_listed(RunDir(file.parent)) for file in sorted(runs_dir.glob("*/run.json"))]


def describe(run_dir: RunDir) -> dict[str, Any]:
    """How a run stands, as plain values."""
    with open_run(run_dir) as run:
        config, catalog = run.config, run.catalog
        steps, standing, trainer = catalog.claims.steps(), catalog.standing(), catalog.trainers.holder()
        last = standing.last_claim
        fates = catalog.leases.fates()
        return {
            "run": run_dir.name,
            "run_id": run_dir.run_id,
            "mode": config.mode,
            "algorithm": config.algorithm.name,
            "steps": f"{len(steps)} of {config.steps}",
            "waits_for": waits_for(_counts(run, len(steps), standing, fates.get("in_flight", 0), trainer and trainer[0])),
            "trainer": f"{trainer[0]}, heard of {duration(trainer[1])} ago" if trainer else "none",
            "failed": run_dir.failure_file.read_text().strip() if run_dir.failure_file.exists() else None,
            "catalog": catalog.place,
            "files": run.table.storage.url,
            **catalog.segments.totals(),
            "labels": catalog.labels.count(),
            "pinned": ", ".join(catalog.history.pins()) or None,
            "leases": sum(fates.values()),
            "megabytes": round(_num_bytes(run_dir.root) / 1e6, 1),
            "damaged": damaged(run),
            "last_step": dict(steps[-1].metrics) if steps else {},
            "fates": fates,
            "groups_that_wait_for": dict(standing.waiting),
            "last_batch": {"step": last.step, "groups": last.groups, "staleness": last.staleness} if last else {},
            "left_out_of_last_batch": dict(last.left_out) if last else {},
            "came_to_nothing": [{"fate": one.fate, "reason": one.reason, "leases": one.leases} for one in standing.unused],
            "explorers": [
                {"explorer": one.explorer, "open leases": one.leases, "first expires in": _until(one.expires_in_s)}
                for one in standing.holders
            ],
            "readers": [
                {
                    "reader": one.reader,
                    "uses version": one.version if one.version >= 0 else "none yet",
                    "seen": f"{duration(one.seen_s_ago)} ago",
                }
                for one in standing.readers
            ],
            "versions": [{"version": v.version, "files": v.uri or "-"} for v in catalog.versions.all() if v.uri or v.version == 0],
            "evaluations": [
                {"version": e.version, **{k.removeprefix("evaluation/"): v for k, v in e.metrics.items()}}
                for e in catalog.versions.evaluations(HELD_OUT)
            ],
        }


def damaged(run: OpenRun) -> list[dict[str, str]]:
    """Files of the table that are missing or have another size, and versions without their files: seen without reading any."""
    segments, storage = run.catalog.segments, run.table.storage
    found = amiss(storage, SEGMENTS, lambda: [file for _, file in segments.files()])
    found |= amiss(storage, OVERLAYS, lambda: [file for *_, file in segments.overlay_files()])
    without = {uri for uri in _version_folders(run) if not run.run_dir.resolve(uri).is_dir()}
    found |= {uri: files.MISSING for uri in _version_folders(run) if uri in without}  # again: the run may have collected some meanwhile
    return [{"file": uri, "problem": problem} for uri, problem in found.items()]


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


def _listed(run_dir: RunDir) -> dict[str, Any]:
    """One run in a list; one that can't be opened does not hide the others."""
    if not run_dir.recipe_file.exists():
        return {"run": run_dir.name, "steps": 0, "run_id": run_dir.run_id, "problem": None}
    try:
        with open_run(run_dir) as run:
            return {"run": run_dir.name, "steps": len(run.catalog.claims.steps()), "run_id": run_dir.run_id, "problem": None}
    except UserError as error:
        return {"run": run_dir.name, "steps": None, "run_id": None, "problem": str(error)}


def _version_folders(run: OpenRun) -> list[str]:
    return [version.uri for version in run.catalog.versions.all() if version.uri is not None]


def _counts(run: OpenRun, done: int, standing: Standing, in_flight: int, trained_by: str | None) -> Counts:
    waiting = standing.waiting
    return Counts(
        done=done,
        steps=run.config.steps,
        wanted=run.config.rollout.batch_groups,
        ready=waiting["training"],
        in_flight=in_flight,
        shaping=waiting["shaping"],
        labels=waiting["labels"],
        due_in_s=standing.due_in_s,
        claimed=standing.last_claim is not None and standing.last_claim.step > done,
        ended=run.run_dir.summary_file.exists(),
        trained_by=trained_by,
    )


def _until(expires_in_s: float) -> str:
    return duration(expires_in_s) if expires_in_s > 0 else "overdue"


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


def _three_answers(run_dir: RunDir) -> list[str]:
    """Answers to tasks that were asked before and after; the two evaluations may have other tasks."""
    with open_run(run_dir) as run:
        scored = run.catalog.versions.evaluations(HELD_OUT)
        before, after = (read_answers(run.table.storage, scored[index].uri, scored[index].sha256) for index in (0, -1))
    old = {row["task_id"]: row["response_text"] for row in before}
    rows = [
        {"task": row["prompt_text"], "right": row["answer"], "before": old[row["task_id"]][:60], "after": row["response_text"][:60]}
        for row in after
        if row["task_id"] in old
    ]
    return [table(rows[:ANSWERS_SHOWN])] if rows else []
