"""How the `rft` command shows a run: a progress bar in a terminal, plain lines elsewhere, JSON for machines."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from rft_core import metrics

SHOWN = (
    ("reward", metrics.REWARD_MEAN, ".3f"),
    ("loss", metrics.LOSS, ".4f"),
    ("grad", metrics.GRAD_NORM, ".2f"),
    ("answer", metrics.RESPONSE_TOKENS, ".1f"),
    ("failed", metrics.FAILED_FRAC, ".0%"),
)
"""What a step's line says: label, metric, format."""


class Lines:
    """One plain line for each thing that happens."""

    def __init__(self, json_lines: bool = False) -> None:
        self._json = json_lines
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def begin(self, run: str, done: int, last: int) -> None:
        self._say("begin", f"{run}: {done} of {last} steps are done", run=run, done=done, last=last)

    def stage(self, step: int, stage: str) -> None:
        if stage == "evaluate":
            self._say("stage", f"step {step}: {stage}", step=step, stage=stage)

    def step(self, step: int, last: int, figures: Mapping[str, float]) -> None:
        self._say("step", step_line(step, last, figures), step=step, last=last, metrics=dict(figures))

    def note(self, text: str) -> None:
        self._say("note", text, text=text)

    def _say(self, event: str, text: str, /, **values: object) -> None:
        elapsed = time.monotonic() - self._began
        line = json.dumps({"event": event, "elapsed_s": round(elapsed, 2), **values}) if self._json else f"[{elapsed:6.1f} s] {text}"
        print(line, file=sys.stderr, flush=True)


class LiveBar:
    """A progress bar with the newest figures."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._bar = Bar(*columns, console=console)
        self._task = self._bar.add_task("starting", total=None, figures="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, run: str, done: int, last: int) -> None:
        self._bar.update(self._task, description=run, total=last, completed=done)

    def stage(self, step: int, stage: str) -> None:
        self._bar.update(self._task, description=f"step {step} {stage}")

    def step(self, step: int, last: int, figures: Mapping[str, float]) -> None:
        self._bar.update(self._task, completed=step, figures=step_line(step, last, figures))

    def note(self, text: str) -> None:
        self._bar.console.print(text)


def watcher(json_lines: bool) -> Lines | LiveBar:
    """What fits where the output goes."""
    return LiveBar() if sys.stderr.isatty() and not json_lines else Lines(json_lines)


def step_line(step: int, last: int, figures: Mapping[str, float]) -> str:
    """A step in one line."""
    shown = [f"{label} {format(figures[name], form)}" for label, name, form in SHOWN if name in figures]
    return f"step {step}/{last}  " + "  ".join(shown)


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as a plain table with aligned columns."""
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    cells = [names, *[[_cell(row[name]) for name in names] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("\n", "\\n")
