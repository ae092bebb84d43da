"""How the `rft` command shows things: a progress bar in a terminal, plain lines elsewhere, tables, JSON for machines."""

import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column

from rft_core import metrics


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
        self._say("step", metrics.step_line(step, last, figures), step=step, last=last, metrics=dict(figures))

    def note(self, text: str) -> None:
        self._say("note", text, text=text)

    def _say(self, event: str, text: str, /, **values: object) -> None:
        elapsed = time.monotonic() - self._began
        line = strict_json({"event": event, "elapsed_s": round(elapsed, 2), **values}) if self._json else f"[{elapsed:6.1f} s] {text}"
        print(line, file=sys.stderr, flush=True)


class LiveBar:
    """A progress bar in one line: the run, its steps, and what it does or its newest figures."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            # What does not fit is cut off: a second line would be left behind each time that the bar is drawn again.
            TextColumn("{task.fields[newest]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        )
        self._bar = Bar(*columns, console=console, expand=True)
        self._task = self._bar.add_task("starting", total=None, newest="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, run: str, done: int, last: int) -> None:
        self._bar.update(self._task, description=run, total=last, completed=done)

    def stage(self, step: int, stage: str) -> None:
        if stage == "evaluate":
            self._bar.update(self._task, newest="scoring the held-out tasks")

    def step(self, step: int, last: int, figures: Mapping[str, float]) -> None:
        self._bar.update(self._task, completed=step, total=last, newest=metrics.shown(figures))

    def note(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


def watcher(json_lines: bool) -> Lines | LiveBar:
    """What fits where the output goes."""
    return LiveBar() if sys.stderr.isatty() and not json_lines else Lines(json_lines)


def strict_json(value: Any, indent: int | None = None) -> str:
    """A value as JSON that every reader takes: what is no finite number becomes null, what JSON has no type for its text."""
    return json.dumps(_finite(value), indent=indent, default=_plain, allow_nan=False)


def program(name: str) -> str:
    """How a shell in this folder finds a program that is installed beside this Python: by its name, or by its path."""
    folder = Path(sys.executable).parent
    found = shutil.which(name)
    if (found and Path(found).parent == folder) or not (folder / name).exists():
        return name
    here = Path.cwd()
    return shlex.quote(os.path.relpath(folder / name, here) if folder.is_relative_to(here) else str(folder / name))


def complain(lines: Iterable[str]) -> None:
    """Say on stderr what is wrong, one line each."""
    for line in lines:
        print(f"rft: {line}", file=sys.stderr)


def duration(seconds: float) -> str:
    """A time in the unit that people would say it in."""
    for name, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s"


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as a plain table with aligned columns."""
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    cells = [names, *[[_cell(row[name]) for name in names] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str | int | None) else str(_plain(key)): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: object) -> object:
    """What JSON has no type for. Sums of integers come from DuckDB as decimals."""
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


TIMES_FROM = 1e6
"""Numbers from here on are shown to three decimals, not to four digits: they are times or counts."""


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < TIMES_FROM else f"{value:.3f}"
    return str(value).replace("\n", "\\n")
