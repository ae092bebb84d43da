"""Processes that share an experience table are killed again and again, and nothing that was acknowledged is lost; the judge can tell."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.torture.compactor import Compactor, Reader
from benchmarks.torture.explorer import Explorer
from benchmarks.torture.journal import Journal, Line
from benchmarks.torture.judge import Verdict, finish, judge
from benchmarks.torture.labeller import Labeller
from benchmarks.torture.place import Place
from benchmarks.torture.role import Role
from benchmarks.torture.trainer import Trainer
from rft_core.catalog import StoredFile
from rft_core.errors import LostClaimError
from tests import servers
from tests.buffer.table import Table
from tests.conftest import address

ROOT = Path(__file__).parents[1]
AT_WORK: dict[str, type[Role]] = {"explorer": Explorer, "labeller": Labeller, "trainer": Trainer, "compactor": Compactor, "reader": Reader}


def kill(num: int, catalog: str) -> None:
    """Kill so many, and check what came of it."""
    command = [sys.executable, "benchmarks/kills.py", "--kills", str(num), "--catalog", catalog]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, found["lost"], found["duplicated"], found["wrong"]) == (0, 0, 0, 0), done.stderr
    assert found["sums_equal"] and found["fsck_clean"]
    assert (found["benchmark"], found["catalog"]) == ("kills", catalog)
    assert sum(found["kills_by_role"].values()) == found["kills"] >= num
    assert sum(found["fates"].values()) >= found["acknowledged"]["leases"] > 0
    for kind in ("appends", "rows", "labels", "claims", "steps"):
        assert found["acknowledged"][kind] > 0


def test_nothing_is_lost_in_sqlite() -> None:
    kill(12, "sqlite")


def test_nothing_is_lost_in_postgres() -> None:
    address(servers.POSTGRES, servers.missing_postgres())
    kill(6, "postgres")


@pytest.mark.long
def test_nothing_is_lost_in_sqlite_after_many_kills() -> None:
    kill(200, "sqlite")


@pytest.mark.long
def test_nothing_is_lost_in_postgres_after_many_kills() -> None:
    address(servers.POSTGRES, servers.missing_postgres())
    kill(50, "postgres")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Journal]:
    """A run on which everybody worked in turn, and nobody was killed; with its journal."""
    root = tmp_path_factory.mktemp("kills") / "run"
    place, journal = Place(str(root)), Journal()
    place.run_dir.create()
    for _ in range(3):
        for name, role in AT_WORK.items():
            with closing(role(place, name, Line(partial(journal.hear, name), lambda: False), Random(1))) as worker:
                worker.begin(journal.redo(name))
                worker.round()
                worker.round()
    finish(place, journal, AT_WORK)
    return root, journal


def judged(run: tuple[Path, Journal], tmp_path: Path, harm: Callable[[Path], None]) -> Verdict:
    """What the judge says of a copy of the run that something was done to behind the catalog's back."""
    shutil.copytree(run[0], tmp_path / "run")
    harm(tmp_path / "run")
    return judge(Place(str(tmp_path / "run")), run[1])


def execute(root: Path, statement: str) -> None:
    with closing(sqlite3.connect(root / "catalog.db")) as catalog:
        assert catalog.execute(statement).rowcount > 0
        catalog.commit()


def remove_a_segment(root: Path) -> None:
    next((root / "segments").iterdir()).unlink()


def leave_a_stray(root: Path) -> None:
    (root / "segments" / "stray.parquet").write_bytes(b"stray")


def store_a_segment_twice(root: Path) -> None:
    execute(
        root,
        "insert into segments (key, sequence, uri, rows, bytes, sha256, schema_version, explorer, step, created_at) "
        "select 'again', sequence + 10000, uri, rows, bytes, sha256, schema_version, explorer, step, created_at from segments "
        "where ended is null limit 1",
    )


def test_a_run_that_nothing_happened_to_is_good(ended: tuple[Path, Journal], tmp_path: Path) -> None:
    verdict = judged(ended, tmp_path, lambda root: None)
    assert verdict.lines() == []
    assert verdict.is_good
    journal = ended[1]
    assert min(map(len, (journal.appends, journal.labels, journal.claims, journal.steps))) > 0


@pytest.mark.parametrize(
    ("harm", "kind", "said"),
    [
        (remove_a_segment, "lost", "is missing"),
        (store_a_segment_twice, "duplicated", "is there 2 times"),
        (leave_a_stray, "wrong", "stray.parquet is of no use"),
        ("delete from labels where sequence = (select max(sequence) from labels)", "lost", "and the table says None"),
        ("update labels set value = value + 1", "lost", "and the table says"),
        ("delete from steps where step = 1", "lost", "step 1 was committed with"),
        ("update steps set metrics = '{\"loss\": 0.5}' where step = 1", "lost", "and the table says 0.5"),
        ("update claims set groups = '[]' where step = 1", "lost", "the claim of step 1 named"),
        ("update claims set groups = (select groups from claims where step = 1) where step = 2", "duplicated", "is in 2 claims"),
        ("update groups set trained_step = 2 where trained_step = 1", "wrong", "which did not claim it"),
        ("update groups set origin = 'another' where trained_step = 1", "wrong", "and says another"),
        ("delete from leases where fate = 'stored'", "lost", "is not there"),
        ("update leases set fate = null where fate = 'stored'", "wrong", "are in_flight after the end"),
    ],
)
def test_the_judge_sees(harm: str | Callable[[Path], None], kind: str, said: str, ended: tuple[Path, Journal], tmp_path: Path) -> None:
    verdict = judged(ended, tmp_path, partial(execute, statement=harm) if isinstance(harm, str) else harm)
    assert any(said in line for line in getattr(verdict, kind)), verdict.lines()
    assert not verdict.is_good


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ({"kind": "claimed", "step": 1, "groups": ["a"], "digest": "x"}, {"groups": ["b"]}, "duplicated"),
        ({"kind": "claimed", "step": 1, "groups": ["a"], "digest": "x"}, {"digest": "y"}, "duplicated"),
        ({"kind": "committed", "step": 1, "figure": 1.0}, {"figure": 2.0}, "wrong"),
        ({"kind": "pin_read", "name": "p", "digest": "x"}, {"digest": "y"}, "wrong"),
        ({"kind": "read", "rows": 2}, {"rows": 1}, "lost"),
    ],
)
def test_the_journal_sees_that_something_changed(first: dict[str, Any], second: dict[str, Any], kind: str) -> None:
    journal = Journal()
    for _ in range(2):
        journal.hear("worker", first)
    assert journal.lost == journal.duplicated == journal.wrong == []
    journal.hear("worker", first | second)
    assert len(getattr(journal, kind)) == 1


def test_what_was_announced_and_not_done_is_done_again_by_the_successor() -> None:
    journal = Journal()
    begun = {"kind": "labelling", "keys": ["a"], "lines": [["a", "e", 1.0, "ada"]]}
    journal.hear("labeller-0", begun)
    assert journal.redo("labeller-1") == []
    assert journal.redo("labeller-0") == [begun]
    assert journal.redo("labeller-0") == []
    journal.hear("labeller-0", begun)
    journal.hear("labeller-0", {"kind": "labelled", "labels": [["a", "e", 1.0, "ada"]]})
    assert journal.redo("labeller-0") == []
    assert journal.labels == {"a": ["e", 1.0, "ada"]}


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    with closing(Table(tmp_path / "run", pipeline="p", writer="trainer")) as opened:
        yield opened


def test_an_overlay_that_comes_while_older_ones_are_merged_is_not_hidden_by_them(table: Table) -> None:
    for key in ("a", "b"):
        rows = table.append(key, table.lease())
        table.shape()
    merging = [key for key, _, _ in table.catalog.segments.overlay_files("p")]
    table.catalog.segments.intend("merged", "overlays/merged.parquet", "compaction")
    table.label({rows[0].experience_id: 0.5})
    table.shape()
    with pytest.raises(LostClaimError, match="1 of 2 overlays say something old"):
        table.catalog.history.replace_overlays(merging, "merged", "p", StoredFile("overlays/merged.parquet", 4, 100, "0" * 64))
    (group,) = table.store.groups([rows[0].group_id], "p")
    assert group.shaped[rows[0].experience_id].shaped_reward == 0.5
    assert len(table.catalog.segments.overlay_files("p")) == 3


def test_a_sweep_that_is_killed_is_finished_by_the_next_one_of_whatever_name(table: Table) -> None:
    class KilledError(Exception):
        pass

    def die(uri: str) -> None:
        raise KilledError

    uri = "segments/a-1.parquet"
    table.catalog.segments.intend("a", uri, "explorer-0")
    table.storage.write(uri, b"half")
    with pytest.raises(KilledError):
        table.catalog.segments.sweep("explorer-0", remove=die)
    with pytest.raises(LostClaimError, match="was taken back"):
        table.catalog.segments.commit("a", StoredFile(uri, 4, 4, "0" * 64), "explorer-0", 1, 1, [])
    assert table.files("segments") == {uri}
    table.store.sweep()
    assert table.files("segments") == set()
    assert table.catalog.segments.intended_uris() == []
