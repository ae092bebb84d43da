"""The experience table: the face of the buffer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rft_core.buffer import files, schema
from rft_core.catalog import Catalog, NewGroup, StoredFile
from rft_core.errors import DeadlineError, LostClaimError, SegmentError
from rft_core.failpoints import failpoint
from rft_core.run_dir import RunDir, remove_leftovers
from rft_core.types import Experience


@dataclass(frozen=True, slots=True)
class Shaped:
    """What a pipeline made of one experience."""

    experience_id: str
    shaped_reward: float | None
    dropped_by: str | None = None
    drop_reason: str | None = None


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group's rows as they happened, and what a pipeline made of them."""

    group_id: str
    rows: tuple[Experience, ...]
    shaped: Mapping[str, Shaped]
    """By experience id; empty where no overlay was asked for."""


class ExperienceStore:
    """Appends segments and overlays, and reads groups back.

    Args:
        run_dir: Where the files are.
        catalog: What makes them part of the table.
        awaits_rewards: Whether a group without any reward waits for labels; false for runs that learn without rewards.
    """

    def __init__(self, run_dir: RunDir, catalog: Catalog, awaits_rewards: bool = True) -> None:
        self._run_dir = run_dir
        self._catalog = catalog
        self._awaits_rewards = awaits_rewards

    def append(self, key: str, rows: Sequence[Experience], explorer: str, step: int, rejected: str | None = None) -> StoredFile:
        """Append the rows of whole groups as one segment, and close their leases.

        Args:
            key: Names this append: a second one with it changes nothing.
            rows: Attempts of any number of groups; they are stored group by group and attempt by attempt.
            explorer: Who sampled them.
            step: The step that they were sampled for.
            rejected: Why none of them may be trained, where too many attempts failed; their leases are issued again.

        Raises:
            TidemillError: A row is not valid.
            LostClaimError: Another process took over these leases.
            UserError: The file can't be written.
        """
        known = self._catalog.segments.find(key)
        if known is not None:
            return known
        groups = _by_group(rows)
        table = schema.to_arrow([row for group in groups for row in group])
        path = self._run_dir.segment(files.unique_name(key))
        self._catalog.segments.intend(key, self._run_dir.relative(path))
        failpoint("segment.intended")
        file = files.write(self._run_dir, path, table, "segment.renamed")
        new = [_new_group(group, self._awaits_rewards) for group in groups]
        if rejected is not None:
            new = [replace(group, status="failed", reason=rejected) for group in new]
        try:
            self._catalog.segments.commit(key, file, path.stat().st_size, explorer, step, schema.VERSION, new, rejected)
        except LostClaimError:
            path.unlink(missing_ok=True)  # whoever took over may have swept already, and would never find it
            raise
        failpoint("segment.committed")
        return file

    def overlay(self, pipeline: str, segment: str, shaped: Sequence[Shaped], account: Any, dropped: Mapping[str, str]) -> None:
        """Lay what a pipeline made of a segment over it; a second time changes nothing.

        Args:
            pipeline: The pipeline's version.
            segment: Key of the segment.
            shaped: One for each of its rows.
            account: What the operators say of what they did, as plain values.
            dropped: Groups of which nothing is left, with the reason.
        """
        if self._catalog.segments.overlay(pipeline, segment) is not None:
            return
        rows = [{"pipeline": pipeline, **{name: getattr(row, name) for name in Shaped.__slots__}} for row in shaped]
        table = pa.Table.from_pylist(rows, schema=schema.OVERLAY)
        path = self._run_dir.overlay(files.unique_name(f"{pipeline}-{segment}"))
        file = files.write(self._run_dir, path, table, "overlay.renamed")
        self._catalog.segments.commit_overlay(pipeline, segment, file, account, dropped)

    def groups(self, group_ids: Sequence[str], pipeline: str | None = None) -> list[StoredGroup]:
        """Read groups back, in the order asked for.

        Args:
            group_ids: Which.
            pipeline: Bring what this pipeline made of them too.

        Raises:
            SegmentError: A file that holds them is missing, torn or altered.
        """
        where = self._catalog.segments.of_groups(group_ids)
        found: dict[str, StoredGroup] = {}
        for segment, file in dict(where.values()).items():
            shaped = self._shaped(pipeline, segment) if pipeline else {}
            for row_group in self._rows_by_group(file, wanted=set(group_ids)):
                mine = {row.experience_id: shaped[row.experience_id] for row in row_group if row.experience_id in shaped}
                found[row_group[0].group_id] = StoredGroup(row_group[0].group_id, row_group, mine)
        return [found[group_id] for group_id in group_ids]

    def write_answers(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        """Write the scored answers of an evaluation, of the columns of `schema.EVALUATION`; returns their URI."""
        cleaned = [{key: schema.clean_text(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]
        path = self._run_dir.evaluation(f"{name}.parquet")
        return files.write(self._run_dir, path, pa.Table.from_pylist(cleaned, schema=schema.EVALUATION), "evaluation.written").uri

    def sweep(self) -> None:
        """Remove what killed writers left: the intents first, their files after. Only for the process that holds the run."""
        segments = self._catalog.segments
        abandoned = segments.intended_uris()
        segments.forget_intents()
        overlays = [self._run_dir.relative(path) for path in self._run_dir.overlay("").glob("*.parquet")]
        committed = {file.uri for _, file in segments.files()} | {file.uri for file in segments.overlay_files()}
        for uri in {*abandoned, *overlays} - committed:
            self._run_dir.resolve(uri).unlink(missing_ok=True)
        for folder in ("segments", "overlays", "evaluations"):
            remove_leftovers(self._run_dir.root / folder)

    def _rows_by_group(self, file: StoredFile, wanted: set[str]) -> list[tuple[Experience, ...]]:
        table = files.read(self._run_dir, file)
        schema.check_version(table.schema, file.uri)
        rows = [row for row in schema.from_arrow(table) if row.group_id in wanted]
        return [tuple(group) for _, group in groupby(rows, key=lambda row: row.group_id)]

    def _shaped(self, pipeline: str, segment: str) -> dict[str, Shaped]:
        file = self._catalog.segments.overlay(pipeline, segment)
        if file is None:
            return {}
        table = files.read(self._run_dir, file).select(Shaped.__slots__)
        return {row["experience_id"]: Shaped(**row) for row in table.to_pylist()}


def _by_group(rows: Sequence[Experience]) -> list[list[Experience]]:
    """Rows by group in the order in which the groups appear, in each by attempt."""
    groups: dict[str, list[Experience]] = {}
    for row in rows:
        groups.setdefault(row.group_id, []).append(row)
    return [sorted(group, key=lambda row: row.attempt) for group in groups.values()]


def _new_group(rows: list[Experience], awaits_rewards: bool) -> NewGroup:
    attempts = {row.attempt for row in rows}
    status, reason = _status(rows, awaits_rewards)
    return NewGroup(rows[0].group_id, rows[0].lease_id, len(attempts), status, reason, min(row.policy_version for row in rows))


def _status(rows: list[Experience], awaits_rewards: bool) -> tuple[str, str]:
    """Failed if every attempt did, pending if none that did not fail has the reward that it waits for, else ready."""
    errors = [row.error for row in rows if row.error is not None]
    if len(errors) == len(rows):
        timed_out = all(error.startswith(DeadlineError.__name__) for error in errors)
        return ("timed_out" if timed_out else "failed"), errors[0]
    if awaits_rewards and all(row.reward is None for row in rows if row.error is None):
        return "pending", "no reward yet"
    return "ready", ""


def read_answers(run_dir: RunDir, uri: str) -> list[dict[str, Any]]:
    """Read the scored answers of an evaluation back: values by the columns of `schema.EVALUATION`.

    Raises:
        SegmentError: Their file is missing.
    """
    path = run_dir.resolve(uri)
    if not path.exists():
        raise SegmentError(f"{path} is missing", "the catalog holds it as written; restore it from a copy")
    answers: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return answers
