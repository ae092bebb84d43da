"""A disk that is full: one line that says so, nothing torn that can be seen, and the same again once there is room."""

import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rft_core.buffer import Shaped
from rft_core.errors import UserError
from tests.buffer.compacting import check_files, squeeze
from tests.buffer.table import Table, append_each, group_id, row
from tests.disks import FullDisk, full_disk

NOISE = random.Random(0).randbytes(1_800_000).hex()


@dataclass
class Full:
    """A table whose segments and overlays lie on a disk of which little is free."""

    table: Table
    disk: FullDisk

    def check(self, error: UserError, folder: str) -> None:
        place = re.escape(str(self.table.run_dir.root / folder))
        assert re.fullmatch(rf"can't write below {place} \({self.disk.message}\), \d+ MB are free there; make room, or .*", str(error))


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    with full_disk(tmp_path / "disk") as disk:
        table = Table(tmp_path / "run", pipeline="p")
        for folder in ("segments", "overlays"):
            (disk.folder / folder).mkdir()
            (table.run_dir.root / folder).symlink_to(disk.folder / folder)
        yield Full(table, disk)
        table.close()


def test_an_append_that_does_not_fit(full: Full) -> None:
    table = full.table
    (lease,) = table.lease()
    big = [row(lease, attempt, response_text=NOISE[attempt * 700_000 :][:700_000]) for attempt in range(4)]
    for _ in range(2):
        with pytest.raises(UserError) as raised:
            table.store.append("a", big, "e", 1)
        full.check(raised.value, "segments")
        assert table.files("segments") == set()
        assert table.catalog.segments.files() == []
        assert table.catalog.leases.open(1) == [lease]
        assert table.ask("select * from experiences") == []
    full.disk.make_room()
    table.store.append("a", big, "e", 1)
    assert table.store.groups([group_id(lease)])[0].rows == tuple(big)
    table.store.sweep()
    check_files(table)


def test_an_overlay_that_does_not_fit(full: Full) -> None:
    table = full.table
    append_each(table, "a", [(1, 0)])
    waiting = table.catalog.segments.to_shape()

    def shape() -> None:
        (group,) = table.store.groups(waiting["a"])
        said = [Shaped(one.experience_id, 0.5, "op", NOISE[one.attempt * 1_500_000 :][:1_500_000]) for one in group.rows]
        table.store.overlay("a", {group.group_id: said}, [], {})

    with pytest.raises(UserError) as raised:
        shape()
    full.check(raised.value, "overlays")
    assert table.files("overlays") == set()
    assert table.catalog.segments.to_shape() == waiting
    assert table.ask("select distinct shaped_reward from experiences") == [{"shaped_reward": None}]
    full.disk.make_room()
    shape()
    assert table.ask("select distinct shaped_reward as r from experiences") == [{"r": 0.5}]
    assert table.catalog.segments.to_shape() == {}
    table.store.sweep()
    check_files(table)


def test_a_compaction_that_does_not_fit(full: Full) -> None:
    """What is merged fits no more beside it: its files are elsewhere, and seen through links."""
    table, (segments, kept) = full.table, (full.disk.folder / "segments", full.table.run_dir.root / "kept")
    kept.mkdir()
    generation = table.take_over()
    for step in (1, 2, 3):
        append_each(table, f"step-{step}", [(1, 0)], step, response_text=NOISE[step * 800_000 :][:800_000])
        path = table.segment_file(f"step-{step}")
        shutil.copy(path, kept / path.name)
        path.unlink()
        (segments / path.name).symlink_to(kept / path.name)
        table.shape()
        table.claim(step, generation)
    question = "select step, attempt, reward, shaped_reward, md5(response_text) as text from experiences order by step, attempt"
    before, files = table.ask(question), table.files("segments")
    with pytest.raises(UserError) as raised:
        squeeze(table)
    full.check(raised.value, "segments")
    assert table.files("segments") == files
    assert table.ask(question) == before
    full.disk.make_room()
    assert squeeze(table).made == 2
    assert table.ask(question) == before
    check_files(table)
