"""`rft fsck`: whether every file of the table is what was written, and every sum is right; what can be mended safely is."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rft_core.buffer import files, schema
from rft_core.buffer.opening import Table
from rft_core.buffer.store import remover_of_tries
from rft_core.catalog import FileRow
from rft_core.errors import SegmentError, UserError
from rft_core.run_dir import EVALUATIONS, OVERLAYS, SEGMENTS
from rft_core.storage import Stat

GRACE_S = 600.0
"""What is younger may belong to somebody who writes it right now."""

_FOLDERS = (SEGMENTS, OVERLAYS, EVALUATIONS)
_SHOWN = 3
"""Problems of one file that its line names."""
_COPY = "restore it from a copy of the run"
_ONE_COPY = "restore the catalog and the files from one copy of the run"
_CALL_FSCK = "`rft fsck` without --check mends it"


@dataclass(slots=True)
class Report:
    """What was looked at, what was mended, and what was not."""

    checked: dict[str, int] = field(default_factory=dict)
    """How many there are of what was looked at: files, rows, leases and so on."""
    repaired: list[str] = field(default_factory=list)
    """One line each: what was found; what was done."""
    left: list[str] = field(default_factory=list)
    """One line each: what was found; what to do."""


def fsck(table: Table, repair: bool = True, grace_s: float = GRACE_S, redo_from: int = 1) -> Report:
    """Verify a table, and mend what can be mended without losing anything. Writers may go on meanwhile.

    Of the rows one file at a time is in memory, and 8 bytes of each id.

    Args:
        table: The table.
        repair: False: only say what would be mended, among what is left.
        grace_s: Seconds for which what looks abandoned is left alone, since its writer may live.
        redo_from: The first step that a restart may have to redo: the one after the oldest checkpoint that is kept.
    """
    check = _Fsck(table, repair, grace_s, redo_from)
    check.abandoned()
    check.ended()
    check.files()
    check.claims()
    check.report.left += table.catalog.audit.breaches(table.store.terms.pipeline)
    check.report.checked |= table.catalog.audit.counts()
    return check.report


class _Fsck:
    """One look at a table."""

    def __init__(self, table: Table, repair: bool, grace_s: float, redo_from: int) -> None:
        self._table = table
        self._storage = table.storage
        self._catalog = table.catalog
        self._repair = repair
        self._grace_s = grace_s
        self._redo_from = redo_from
        self._remove_tries = remover_of_tries(table.storage)
        self._ids = _Ids()
        self.report = Report()

    def abandoned(self) -> None:
        """What killed writers and explorers left: intents, files that nothing knows, temporary files, leases."""
        listed = {uri: stat for folder in _FOLDERS for uri, stat in self._storage.files(folder).items()}
        known = self._known_uris()  # after the files were listed: one that became part of the table meanwhile is known then
        segments = self._catalog.segments
        if self._repair:
            segments.sweep(None, self._grace_s, remove=self._take_back)
        else:
            for _, uri in segments.sweepable(None, self._grace_s):
                self._take_back(uri)
        unknown = {uri: stat for uri, stat in listed.items() if uri not in known and self._is_old(stat)}
        if unknown and not known and not self._catalog.leases.num_issued():
            self.report.left.append(
                f"{len(unknown)} files lie in {self._storage.url}, and the catalog {self._catalog.place} knows none and no lease; "
                "it is another run's, or was emptied: restore it from a copy"
            )
            unknown = {}
        self.report.left += map(self._unknown, unknown)
        for folder in _FOLDERS:
            for uri in [uri for uri, stat in self._storage.leftovers(folder).items() if self._is_old(stat)]:
                self._mend(f"{uri} is what a killed writer left", "deleted", partial(self._storage.delete, uri))
        overdue = self._catalog.leases.num_overdue()
        if overdue:
            self._mend(f"{overdue} leases are of explorers that are not heard of any more", "expired", self._catalog.leases.expire_overdue)

    def _take_back(self, uri: str) -> None:
        self._mend(f"{uri} was announced and never became part of the table", "taken back", partial(self._remove_tries, uri))

    def ended(self) -> None:
        """Files that are no part of the table any more, and that no state in use needs."""
        history = self._catalog.history
        in_use = history.of_claims(self._redo_from)
        old = set(history.collectable(in_use, self._grace_s))
        for name, key, uri in history.collectable(in_use, 0.0):
            gone = self._storage.size(uri) is None
            if gone or (name, key, uri) in old:
                found = f"{uri} ended, nothing needs it, and it is {'gone' if gone else 'still there'}"
                self._mend(found, "marked as deleted" if gone else "deleted", partial(self._drop, name, key, uri))

    def files(self) -> None:
        """Every file whose bytes are needed."""
        free = self._free()
        counts: Counter[str] = Counter({"segments": 0, "overlays": 0, "answers": 0, "rows": 0, "bytes": 0})
        for row in self._catalog.audit.files():
            if (row.table, row.key) in free:
                continue
            counts.update({row.table: 1, "bytes": row.file.bytes, "rows": row.file.rows if row.table == "segments" else 0})
            problem = self._problem_of(row)
            if problem is not None and self._is_still(row):
                self.report.left.append(problem)
        for file in self._catalog.versions.answer_files():
            counts["answers"] += 1
            try:
                files.read(self._storage, file)
            except SegmentError as error:
                if file in self._catalog.versions.answer_files():
                    self.report.left.append(f"{error.found}; {_COPY}, or remove its evaluation and score that version again")
            except UserError as error:
                self.report.left.append(str(error))
        self.report.left += [f"experience {twice}; an id names one row: {_ONE_COPY}" for twice in self._twice()]
        self.report.checked |= counts

    def claims(self) -> None:
        """The batches of the steps that may have to be redone: every group must be there, as it was read."""
        segments = self._catalog.segments
        for step in self._catalog.audit.claimed_steps(self._redo_from):
            claim = self._catalog.claims.find(step)
            assert claim is not None, "claims are never deleted"
            pipeline, at = claim.snapshot["pipeline"], claim.snapshot["sequence"]
            stored = segments.of_groups(claim.group_ids)
            shaped = stored if pipeline is None else segments.overlays_of(pipeline, claim.group_ids, at)
            lost = [group for group in claim.group_ids if group not in stored or group not in shaped]
            if lost:
                what = f"the {'overlay' if lost[0] in stored else 'rows'} of group {lost[0]}"
                more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
                found = f"the batch of step {step}, which may have to be redone, needs {what}{more}, which are there no more"
                self.report.left.append(f"{found}; {_ONE_COPY}")

    def _mend(self, found: str, done: str, mend: Callable[[], object]) -> None:
        if self._repair:
            mend()
            self.report.repaired.append(f"{found}; {done}")
        else:
            self.report.left.append(f"{found}; {_CALL_FSCK}")

    def _drop(self, name: str, key: str, uri: str) -> None:
        self._storage.delete(uri)
        self._catalog.history.collected(name, [key])

    def _unknown(self, uri: str) -> str:
        """What is said of a file that is in no state of this catalog, and was not announced.

        It stays. What killed writers leave was announced, so another state of the catalog most likely knows it: it is newer than a copy of
        the catalog that was restored. A writer leaves one only if it is so slow that its intent is swept, and is then killed as well.
        """
        if not uri.endswith(".parquet"):
            return f"{uri} is no file of the table; move it elsewhere"
        if uri.startswith(SEGMENTS) and (lease := self._unknown_lease(uri)) is not None:
            found = f"{uri} is not in the catalog, and holds rows of lease {lease}, which is not there either"
            return f"{found}; the catalog is older than it: restore a newer copy, or move the file elsewhere"
        return f"{uri} is not in the catalog; if that was restored from a copy, restore a newer one, else move the file elsewhere"

    def _unknown_lease(self, uri: str) -> str | None:
        """A lease that a file holds rows of and the catalog does not know: no writer of this catalog made that file."""
        try:
            leases = pq.read_table(pa.BufferReader(self._storage.read(uri)), columns=["lease_id"])["lease_id"].unique().to_pylist()
        except (FileNotFoundError, pa.ArrowException, OSError, KeyError):
            return None
        return min(self._catalog.audit.unknown_leases(leases), default=None)

    def _known_uris(self) -> set[str]:
        answers = [file.uri for file in self._catalog.versions.answer_files()]
        return {*(row.file.uri for row in self._catalog.audit.files()), *self._catalog.segments.intended_uris(), *answers}

    def _is_old(self, stat: Stat) -> bool:
        return stat.modified_s <= time.time() - self._grace_s

    def _is_still(self, row: FileRow) -> bool:
        """Whether the catalog still says what was checked: a compaction may have gone on meanwhile."""
        return row in self._catalog.audit.files() and (row.table, row.key) not in self._free()

    def _free(self) -> set[tuple[str, str]]:
        """Files that ended and that no state in use needs, by table and key."""
        history = self._catalog.history
        return {(name, key) for name, key, _ in history.collectable(history.of_claims(self._redo_from), 0.0)}

    def _problem_of(self, row: FileRow) -> str | None:
        """What is wrong with a file, and what to do; null if nothing is."""
        try:
            content = self._storage.read(row.file.uri)
        except FileNotFoundError:
            return f"{row.file.uri} is missing{self._needed_by(row)}; {_COPY}"
        except UserError as error:
            return str(error)
        damage = files.damage(content, row.file)
        if damage is not None:
            return f"{row.file.uri} {damage}{self._needed_by(row)}; {_COPY}"
        try:
            found = list(self._misfits(row, pq.ParquetFile(pa.BufferReader(content))))
        except SegmentError as error:
            return str(error)
        except (pa.ArrowException, OSError) as error:
            return f"{row.file.uri} {files.unreadable(error)}; {_COPY}"
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return f"{row.file.uri}: {', '.join(found[:_SHOWN])}{more}; {_ONE_COPY}" if found else None

    def _needed_by(self, row: FileRow) -> str:
        """Why a file that is no part of the table any more is needed."""
        if row.ended is None:
            return ""
        pins = [name for name, at in self._catalog.history.pins().items() if row.sequence <= at < row.ended]
        return f", and the state pinned as {pins[0]} needs it" if pins else f", and steps from {self._redo_from} on may be redone with it"

    def _misfits(self, row: FileRow, parquet: pq.ParquetFile) -> Iterator[str]:
        """In what a file is not what the catalog says of it."""
        if parquet.metadata.num_rows != row.file.rows:
            yield f"it has {parquet.metadata.num_rows} rows, and the catalog says {row.file.rows}"
        if row.table == "overlays":
            yield from _overlay_misfits(row, parquet.read())
            return
        schema.check_version(parquet.schema_arrow, row.file.uri)
        version = parquet.schema_arrow.metadata[b"tidemill.schema"].decode()
        if version != row.form:
            yield f"it has columns of version {version}, and the catalog says {row.form}"
        attempts = self._attempts(parquet, row)
        if row.ended is None:
            yield from _group_misfits(attempts, self._catalog.segments.groups_in(row.key))

    def _attempts(self, parquet: pq.ParquetFile, row: FileRow) -> dict[str, int]:
        """How many attempts of each group a segment holds; every row of it is read as training reads it."""
        attempts: set[tuple[str, int]] = set()
        for number in range(parquet.num_row_groups):
            rows = schema.upgrade(parquet.read_row_group(number), row.file.uri)
            pairs = rows.group_by(["group_id", "attempt"]).aggregate([])
            attempts.update(zip(pairs["group_id"].to_pylist(), pairs["attempt"].to_pylist(), strict=True))
            if row.ended is None:
                self._ids.add(rows["experience_id"])
        return dict(Counter(group for group, _ in attempts))

    def _twice(self) -> list[str]:
        """Ids that rows of the table have in common, each with the files that hold it."""
        suspects = self._ids.seen_twice()
        if not len(suspects):
            return []
        where: dict[str, list[str]] = {}
        for _, file in self._catalog.segments.files():
            try:
                ids = files.read_segment(self._storage, file)["experience_id"]
            except SegmentError:
                continue  # it is among what is left already
            for position in np.flatnonzero(np.isin(_hashes(ids), suspects)):
                where.setdefault(ids[int(position)].as_py(), []).append(file.uri)
        return [f"{twice} is in {', '.join(uris)}" for twice, uris in sorted(where.items()) if len(uris) > 1]


class _Ids:
    """The ids of a whole table, as hashes of 8 bytes."""

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.int64]] = []

    def add(self, ids: pa.ChunkedArray) -> None:
        self._parts.append(_hashes(ids))

    def seen_twice(self) -> npt.NDArray[np.int64]:
        """Hashes that came more than once: of one id, or, very rarely, of several."""
        every = np.sort(np.concatenate(self._parts)) if self._parts else np.empty(0, np.int64)
        return np.unique(every[1:][every[1:] == every[:-1]])


def _hashes(ids: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.fromiter(map(hash, ids.to_pylist()), np.int64, len(ids))


def _overlay_misfits(row: FileRow, rows: pa.Table) -> Iterator[str]:
    if not rows.schema.equals(schema.OVERLAY):
        yield f"it has the columns {', '.join(rows.schema.names)}, which are no overlay's"
        return
    schema.check_text(rows, row.file.uri)
    if rows.num_rows and rows["pipeline"].unique().to_pylist() != [row.form]:
        yield f"it is of the pipelines {', '.join(map(str, rows['pipeline'].unique().to_pylist()))}, and the catalog says {row.form}"
    if pc.count_distinct(rows["experience_id"]).as_py() < rows.num_rows:
        yield "it says something of an experience twice"


def _group_misfits(found: Mapping[str, int], sizes: Mapping[str, int]) -> Iterator[str]:
    for group in sorted(found.keys() | sizes.keys()):
        if group not in sizes:
            yield f"it holds rows of group {group}, which the catalog does not have in it"
        elif found.get(group, 0) != sizes[group]:
            yield f"group {group} has {found.get(group, 0)} attempts in it, and the catalog says {sizes[group]}"
