"""What the commands do that work on a run's experience table, and on what belongs to it."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rft_core.buffer import Questions, Table, open_known
from rft_core.buffer.compaction import GRACE_S, Compacted, compact
from rft_core.buffer.export import EVERYTHING, FORMS, Form, export_rows
from rft_core.buffer.fsck import GRACE_S as FSCK_GRACE_S
from rft_core.buffer.fsck import Report, fsck
from rft_core.buffer.labelling import Labelled, apply_labels
from rft_core.buffer.labels import read_labels
from rft_core.catalog import HELD_OUT, Catalog, best, heartbeat
from rft_core.config import RunConfig, read_recipe
from rft_core.disk import discard, folder_written_whole, leftovers, no_space
from rft_core.errors import IntegrityError, UserError
from rft_core.operators.apply import pipeline_version
from rft_core.processes import this_process
from rft_core.run_dir import RunDir
from rft_core.trainer import manifest
from rft_core.weights import READER_TIMEOUT_S, fetch, newest_complete

Export = Literal["weights"] | Form
EXPORTS: tuple[Export, ...] = ("weights", *FORMS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_WRITTEN = (".csv", ".tsv", ".json", ".txt", ".arrow", ".feather")
"""Endings of files that people may expect rows in."""
_BY_ENDING: dict[str, Form] = {".parquet": "parquet", ".jsonl": "jsonl"}


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that was started once, and its table."""

    run_dir: RunDir
    config: RunConfig
    table: Table

    @property
    def catalog(self) -> Catalog:
        return self.table.catalog

    def questions(self, state: str | None = None) -> Questions:
        """The table, ready to be asked in SQL, as it is now or as it was when it was pinned under a name."""
        at = None if state is None else self.catalog.history.named(state)
        return Questions(self.table.storage, self.catalog, self.table.store.terms.pipeline, self.config.labels.combine, at)

    def redo_from(self) -> int:
        """The first step that a restart may have to redo."""
        return manifest.redo_from(self.run_dir.checkpoints)


@contextmanager
def open_run(run_dir: RunDir, writer: str = "review") -> Iterator[OpenRun]:
    """Open the table of a run for as long as the block lasts.

    Args:
        run_dir: The run.
        writer: What it is opened for.

    Raises:
        UserError: The run was never started, or its table can't be opened.
    """
    if not run_dir.recipe_file.exists():
        raise UserError(f"{run_dir.root} has no table yet", "the run must have started once")
    config = read_recipe(run_dir.recipe_file)
    table = open_known(run_dir, config, pipeline_version(config.operators), writer)
    try:
        yield OpenRun(run_dir, config, table)
    finally:
        table.catalog.close()


@contextmanager
def questions(run_dir: RunDir, state: str | None = None) -> Iterator[Questions]:
    """A run, ready to be asked in SQL for as long as the block lasts, as it is now or was when it was pinned under a name."""
    with open_run(run_dir) as run:
        yield run.questions(state)


def verify(run: OpenRun, repair: bool = True, grace_s: float = FSCK_GRACE_S) -> Report:
    """Verify the table, the published versions and the checkpoints of a run, and mend what can be mended safely.

    Args:
        run: The run; it may go on meanwhile.
        repair: False: only say what would be mended, among what is left.
        grace_s: Seconds for which what looks abandoned is left alone.
    """
    report = fsck(run.table, repair, grace_s, run.redo_from())
    _verify_versions(run, report)
    _verify_checkpoints(run, report)
    if run.catalog.trainers.holder() is None:
        _remove_leftovers(run.run_dir, report, repair, grace_s)
    return report


def label(run: OpenRun, file: Path, author: str | None, partial: bool) -> Labelled:
    """Apply a file of labels to a run; it may go on meanwhile.

    Args:
        run: The run.
        file: JSONL, one label a line.
        author: Who says so in the lines that name nobody.
        partial: Leave out what names no experience of the run, rather than refuse all.

    Raises:
        DataError: A line is wrong, or some name no experience of this run.
    """
    return apply_labels(run.table, read_labels(file, author), partial)


def pin(run: OpenRun, name: str) -> tuple[int, bool]:
    """Name the present state of the table; returns its number, and whether the name was there already, with the state that it has.

    Raises:
        UserError: It is no name.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name for a state", "letters, digits, and `.`, `_` and `-` after the first one are right")
    known = run.catalog.history.pins().get(name)
    return run.catalog.history.pin(name), known is not None


def unpin(run: OpenRun, name: str) -> int:
    """Let a named state go; returns its number.

    Raises:
        QueryError: No state has that name.
    """
    number = run.catalog.history.named(name)
    run.catalog.history.unpin(name)
    return number


def compact_table(run: OpenRun, now: bool) -> Compacted:
    """Merge small files, let go what the recipe does not keep, and delete what nothing needs any more.

    Args:
        run: The run; it may go on meanwhile.
        now: Delete at once what ended just now; whoever reads it at this moment fails.
    """
    return compact(run.table, run.config.table.retention, run.redo_from(), grace_s=0.0 if now else GRACE_S)


def export_form(target: Path, wanted: str | None, version: str | None, question: str | None) -> Export:
    """What an export writes: what `--as` says, or the ending of its target; weights if neither does.

    Raises:
        UserError: The arguments don't go together.
    """
    if wanted is not None and wanted not in EXPORTS:
        raise UserError(f"--as {wanted}", f"one of {', '.join(EXPORTS)} is right")
    by_ending = _BY_ENDING.get(target.suffix)
    form = next((form for form in EXPORTS if form == wanted), by_ending or "weights")
    if wanted is None and target.suffix in _NOT_WRITTEN:
        raise UserError(f"{target} ends in {target.suffix}", "rows are written as .parquet or .jsonl, weights to a folder")
    if by_ending is not None and form != by_ending:
        raise UserError(f"{target} ends in {target.suffix}, and --as says {form}", "give it another name, or leave --as out")
    if form == "weights" and question is not None:
        raise UserError(f"--question asks for rows, and {target} is to be a folder of weights", "end it in .parquet or .jsonl, or say --as")
    if form != "weights" and version is not None:
        raise UserError(f"--version asks for weights, and {target} is to hold rows", "leave --version out, or name a folder")
    return form


def export_answer(run: OpenRun, question: str | None, target: Path, form: Form) -> int:
    """Write the answer to a question, or every stored row, to a new file or folder; returns its number of rows.

    Raises:
        UserError: The target is there or can't be written, or the question can't be answered.
        SegmentError: A file that holds rows of the answer is missing or damaged.
    """
    return export_rows(run.questions(), EVERYTHING if question is None else question, target, form)


def export_version(run: OpenRun, wanted: str, target: Path) -> int:
    """Copy a version as a Hugging Face folder; returns its number.

    Args:
        run: The run.
        wanted: A number, `newest`, or `best`.
        target: A folder that is not there yet.

    Raises:
        UserError: The target is there or can't be written, or `wanted` names no version with files.
        WeightsError: The version has no whole files.
    """
    if target.exists():
        raise UserError(f"{target} is there already", "name a new folder")
    number = _version_number(run, wanted)
    with _in_use(run, number):
        known = run.catalog.versions.find(number)
        if known is None or known.uri is None:
            stored = [str(version.version) for version in run.catalog.versions.all() if version.uri is not None]
            raise UserError(f"{run.run_dir.root} has no files of version {number}", f"it has those of {', '.join(stored) or 'none'}")
        folder = fetch(run.run_dir, known, number)
        try:
            with folder_written_whole(target) as copy:
                for file in folder.iterdir():
                    shutil.copy2(file, copy / file.name)
        except OSError as error:
            raise no_space(error, target.parent) from None
    return number


def _version_number(run: OpenRun, wanted: str) -> int:
    if wanted == "newest":
        return newest_complete(run.run_dir, run.catalog.versions.all())[0]
    if wanted == "best":
        return best_of(run.catalog)
    if not wanted.isdecimal():
        raise UserError(f"--version {wanted}", "a number, `newest` or `best` is right")
    return int(wanted)


@contextmanager
def _in_use(run: OpenRun, version: int) -> Iterator[None]:
    """Keep a run that goes on from collecting the files of a version for as long as the block lasts."""
    reader = f"export in {this_process().name}"
    versions = run.catalog.versions
    versions.acknowledge(reader, version)
    try:
        with heartbeat(lambda: versions.seen(reader), READER_TIMEOUT_S / 4):
            yield
    finally:
        versions.release(reader)


def best_of(catalog: Catalog) -> int:
    """The version that scored best on the held-out tasks.

    Raises:
        UserError: None was scored.
    """
    version = best(catalog.versions.evaluations(HELD_OUT))
    if version is None:
        raise UserError("no version of this run was scored", "give the recipe `data.evaluation`, or name a version")
    return version


def _verify_versions(run: OpenRun, report: Report) -> None:
    """Every published version whose files are kept; one that is collected meanwhile is none of them."""
    versions = run.catalog.versions
    stored = [version for version in versions.all() if version.uri is not None]
    report.checked["versions"] = len(stored)
    for version in stored:
        try:
            fetch(run.run_dir, version, version.version)
        except IntegrityError as error:
            if versions.find(version.version) == version:
                report.left.append(f"version {version.version}: {error}")


def _verify_checkpoints(run: OpenRun, report: Report) -> None:
    """The checkpoints that are kept; those before them may be in the middle of their removal."""

    def kept() -> list[Path]:
        return manifest.ordered(run.run_dir.checkpoints)[-run.config.checkpoint.keep :]

    checkpoints = kept()
    report.checked["checkpoints"] = len(checkpoints)
    for folder in checkpoints:
        try:
            manifest.verify(folder)
        except IntegrityError as error:
            if folder in kept():
                report.left.append(str(error))


def _remove_leftovers(run_dir: RunDir, report: Report, repair: bool, grace_s: float) -> None:
    """Temporary files and folders of killed trainers; only while nobody trains. A trainer that begins meanwhile removes them too."""
    for path in [path for folder in (run_dir.root, run_dir.weights, run_dir.checkpoints) for path in leftovers(folder)]:
        with suppress(FileNotFoundError):
            if path.stat().st_mtime > time.time() - grace_s:
                continue
            found = f"{path} is what a killed trainer left"
            if not repair:
                report.left.append(f"{found}; `rft fsck` without --check mends it")
                continue
            discard(path)
            if path.exists():
                report.left.append(f"{found}, and can't be deleted; let this user do that")
            else:
                report.repaired.append(f"{found}; deleted")
