"""Compaction and retention: fewer files that say the same, and no more of them than a recipe wants to keep."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa

from rft_core.buffer import files, schema
from rft_core.buffer.opening import Table
from rft_core.buffer.store import remover_of_tries
from rft_core.catalog import Part, StoredFile
from rft_core.config import RetentionConfig
from rft_core.errors import LostClaimError, SegmentError, UserError
from rft_core.failpoints import failpoint
from rft_core.run_dir import OVERLAYS, SEGMENTS
from rft_core.storage import Storage
from rft_core.types import digest

WRITER = "compaction"
DAY_S = 86_400.0
TARGET_BYTES = 64_000_000
"""Bytes that a merged file is about to have: it is read and verified as a whole."""
MOST_FILES = 1000
"""Files that one merge reads; the next compaction merges what comes of it."""
SHARES = 10
"""Retention lets whole files go: a merged one holds at most this fraction of what is kept, so that no more than that goes at once."""
GRACE_S = 600.0
"""How long a file that is no part of the table any more stays, for whoever began to read it."""

_Reader = Callable[[Storage, StoredFile], pa.Table]


@dataclass(slots=True)
class Compacted:
    """What a compaction did."""

    merged: int = 0
    """Files that others now stand for."""
    made: int = 0
    """Files that stand for them."""
    let_go: int = 0
    """Segments whose rows retention ended."""
    deleted: int = 0
    """Files that nothing needed any more."""
    damaged: list[str] = field(default_factory=list)
    """What could not be read, and so was left as it is."""


def compact(
    table: Table, retention: RetentionConfig, redo_from: int, target_bytes: int = TARGET_BYTES, grace_s: float = GRACE_S
) -> Compacted:
    """Merge small files, let old rows go as the recipe says, and delete what nothing needs any more.

    Rows that still wait for labels, shaping or training stay where they are. It may be killed at any point and called again.

    Args:
        table: The table.
        retention: How much of it is kept.
        redo_from: The first step that a restart may have to redo: the one after the oldest checkpoint that is kept.
        target_bytes: Bytes of a merged file.
        grace_s: Seconds that a file stays after it ended.
    """
    done = Compacted()
    table.catalog.segments.sweep(WRITER, remove=remover_of_tries(table.storage))
    _let_go(table, retention, done)
    idle = [part for part in table.catalog.history.segments() if not part.busy]
    for batch in _batches(idle, _Limits.of(retention, target_bytes)):
        _merge_segments(table, batch, done)
    for pipeline in table.catalog.history.pipelines():
        for batch in _batches(table.catalog.history.overlays(pipeline), _Limits(target_bytes)):
            _merge_overlays(table, pipeline, batch, done)
    _collect(table, redo_from, grace_s, done)
    return done


def _let_go(table: Table, retention: RetentionConfig, done: Compacted) -> None:
    """End the oldest segments until what is left is within the limits; one that waits for something is never among them."""
    history = table.catalog.history
    parts, at = history.segments(), history.now()
    rows, size = sum(part.file.rows for part in parts), sum(part.file.bytes for part in parts)
    ended = []
    for part in parts:
        too_old = retention.max_age_days is not None and part.created_at < at - retention.max_age_days * DAY_S
        too_many = retention.max_rows is not None and rows > retention.max_rows
        too_big = retention.max_bytes is not None and size > retention.max_bytes
        if part.busy or not (too_old or too_many or too_big):
            continue
        ended.append(part.key)
        rows, size = rows - part.file.rows, size - part.file.bytes
    if ended:
        history.let_go(ended)
    done.let_go = len(ended)


@dataclass(frozen=True, slots=True)
class _Limits:
    """How much a merged file is about to hold."""

    bytes: float
    rows: float = math.inf
    age_s: float = math.inf
    """Between its oldest and its newest append."""

    @classmethod
    def of(cls, retention: RetentionConfig, target_bytes: int) -> "_Limits":
        return cls(
            min(target_bytes, math.inf if retention.max_bytes is None else retention.max_bytes / SHARES),
            math.inf if retention.max_rows is None else retention.max_rows / SHARES,
            math.inf if retention.max_age_days is None else retention.max_age_days * DAY_S / SHARES,
        )

    def window(self, part: Part) -> int:
        """Files of one window may be merged, however often: so none gets younger by being merged again and again."""
        return 0 if self.age_s == math.inf else int(part.created_at // self.age_s)


def _batches(parts: Sequence[Part], limits: _Limits) -> Iterator[list[Part]]:
    """Neighbours that are small, in batches of about the limits' size; one alone is no batch."""
    small = [part for part in parts if part.file.bytes <= limits.bytes / 2 and part.file.rows <= limits.rows / 2]
    for _, neighbours in groupby(small, key=limits.window):
        batch: list[Part] = []
        size = rows = 0
        for part in neighbours:
            batch.append(part)
            size, rows = size + part.file.bytes, rows + part.file.rows
            if size >= limits.bytes or rows >= limits.rows or len(batch) == MOST_FILES:
                yield batch
                batch, size, rows = [], 0, 0
        if len(batch) > 1:
            yield batch


def _merge_segments(table: Table, batch: list[Part], done: Compacted) -> None:
    history = table.catalog.history
    read = _read_all(table, batch, files.read_segment, done)
    if len(read) < 2:
        return
    merged = pa.concat_tables([rows for _, rows in read])
    keys = [part.key for part, _ in read]
    key = f"compact-{digest(*keys)[:16]}"
    _write(
        table, key, f"{SEGMENTS}/{files.unique_name(key)}", merged, lambda file: history.replace_segments(keys, key, file, schema.VERSION)
    )
    done.merged, done.made = done.merged + len(keys), done.made + 1


def _mergeable(table: Table, batch: list[Part]) -> list[Part]:
    """A merged overlay is newer than all others: what one that is not in the batch says newer must not come into it."""
    while outdated := table.catalog.history.superseded([part.key for part in batch]):
        batch = [part for part in batch if part.key not in outdated]
    return batch


def _merge_overlays(table: Table, pipeline: str, batch: list[Part], done: Compacted) -> None:
    history = table.catalog.history
    read = _read_all(table, batch, files.read, done)
    current = {part.key for part in _mergeable(table, [part for part, _ in read])}
    read = [(part, rows) for part, rows in read if part.key in current]
    if len(read) < 2:
        return
    newest_last = pa.concat_tables(
        [rows.append_column("age", pa.array([age] * len(rows), pa.int32())) for age, (_, rows) in enumerate(read)]
    )
    newest = newest_last.group_by("experience_id").aggregate([("age", "max")]).rename_columns({"age_max": "age"})
    merged = newest_last.join(newest, keys=["experience_id", "age"], join_type="inner").sort_by("experience_id")
    keys = [part.key for part, _ in read]
    key = f"{pipeline}-compact-{digest(*keys)[:16]}"
    says = merged.select(schema.OVERLAY.names).cast(schema.OVERLAY)
    try:
        _write(table, key, f"{OVERLAYS}/{files.unique_name(key)}", says, lambda file: history.replace_overlays(keys, key, pipeline, file))
    except LostClaimError:
        if history.superseded(keys):  # while they were read and written: the next compaction merges what is newest then
            return
        raise
    done.merged, done.made = done.merged + len(keys), done.made + 1


def _read_all(table: Table, batch: list[Part], read_whole: _Reader, done: Compacted) -> list[tuple[Part, pa.Table]]:
    """The whole files of a batch; damaged ones stay where they are, and are named."""
    read = []
    for part in batch:
        try:
            read.append((part, read_whole(table.storage, part.file)))
        except (SegmentError, UserError) as error:
            done.damaged.append(error.found)
    return read


def _write(table: Table, key: str, uri: str, rows: pa.Table, commit: Callable[[StoredFile], None]) -> None:
    """Write a merged file and put it in the place of the others; if it can't be, nothing of it stays."""
    table.catalog.segments.intend(key, uri, WRITER)
    file = files.write(table.storage, uri, rows, "compact.renamed")
    try:
        commit(file)
    except LostClaimError:
        table.storage.delete(uri)
        raise


def _collect(table: Table, redo_from: int, grace_s: float, done: Compacted) -> None:
    """Delete the files that ended, and that no state in use needs: pinned ones, and those of claims that may be redone."""
    history = table.catalog.history
    for name, key, uri in history.collectable(history.of_claims(redo_from), grace_s):
        table.storage.delete(uri)
        failpoint("collect.deleted")
        history.collected(name, [key])
        done.deleted += 1
