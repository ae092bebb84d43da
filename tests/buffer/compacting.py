"""Tables that have something to compact, and what must be the same afterwards."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

from rft_core.buffer import VIEWS, Questions
from rft_core.buffer.compaction import Compacted, compact
from rft_core.catalog import Claim
from rft_core.config import RetentionConfig
from rft_core.storage import LocalStorage
from tests.buffer.table import Table, append_each, group_id

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.buffer.compacting"])


def fill(table: Table, steps: int = 3) -> list[Claim]:
    """Steps of two groups each, all trained; a group of each step was shaped, labelled, and shaped again."""
    generation = table.take_over()
    claims = []
    for step in range(1, steps + 1):
        leases = append_each(table, f"step-{step}", [(1, 0), (0.5, 0.25 * step)], step)
        table.shape(factor=0.5)
        table.label({table.store.groups([group_id(leases[0])])[0].rows[1].experience_id: 0.75})
        table.shape(factor=2.0)
        claims.append(table.claim(step, generation))
        table.commit(claims[-1], generation)
    return claims


def squeeze(table: Table, redo_from: int = 100, target_bytes: int = 10**9, grace_s: float = 0.0, **retention: Any) -> Compacted:
    """Compact, and delete at once what nothing needs."""
    return compact(table.open, RetentionConfig(**retention), redo_from, target_bytes, grace_s)


def everything(table: Table) -> dict[str, list[dict[str, Any]]]:
    """The answer of every view, but for the names of files."""
    questions = Questions(table.storage, table.catalog, "p")
    answers = {view: questions.ask(f"select * from {view}").to_pylist() for view in VIEWS if view not in ("segments", "snapshots")}
    for group in answers["groups"]:
        del group["segment"]
    assert questions.damaged == {}
    return {view: sorted(rows, key=str) for view, rows in answers.items()}


def check_files(table: Table) -> None:
    """Every file is known, every known file is there, every row is there once, and nothing is announced."""
    known = {file.uri for _, file in table.catalog.segments.files()} | {file.uri for *_, file in table.catalog.segments.overlay_files()}
    ended = set()
    for name in ("segments", "overlays"):
        columns, rows = table.catalog.relation(name)
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        ended |= {row["uri"] for row in found if row["ended"] is not None and row["collected_at"] is None}
    assert table.files("segments") | table.files("overlays") == known | ended
    assert table.ask("select count(*) = count(distinct experience_id) as once from experiences") == [{"once": True}]
    assert table.catalog.segments.intended_uris() == []


def killed(root: Path, point: str) -> int:
    """Compact in a process of its own that is killed at a failpoint; its exit code."""
    child = FORK.Process(target=_compact, args=(root, point))
    child.start()
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


def _compact(root: Path, point: str) -> None:
    os.environ["TIDEMILL_KILL_AT"] = point
    squeeze(Table(root, pipeline="p"))


class Racing(LocalStorage):
    """A place where the files are merged and deleted between the look-up of a file and its reading.

    Args:
        table: Whose place.
        on: `read` or `list`: before the first of those a compaction comes.
    """

    def __init__(self, table: Table, on: str) -> None:
        super().__init__(table.run_dir.root)
        self._table, self._on = table, on

    def _come_between(self, on: str) -> None:
        if self._on == on:
            self._on = ""
            assert squeeze(self._table).deleted > 0

    def _read(self, uri: str) -> Any:
        self._come_between("read")
        return super()._read(uri)

    def _list(self, folder: str) -> Any:
        self._come_between("list")
        return super()._list(folder)


FAILS_LATE = """
select case when i < 4000000 then i else error('too late') end as i
from range(4000001) numbers(i) where (select count(*) from experiences) > 0"""
"""A question over the experiences whose answer begins, and then fails."""
