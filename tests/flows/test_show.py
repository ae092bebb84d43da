"""`rft show`: how a run stands, what its trainer waits for, and what is damaged; run in process, over small tables."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.show import Counts, waits_for
from rft_core.buffer import Shaped
from rft_core.buffer.compaction import compact
from rft_core.catalog.leases import Leases
from rft_core.config import RetentionConfig
from rft_core.run_dir import RunDir
from rft_core.storage import LocalStorage, Stat
from rft_core.weights import WeightStore
from tests.buffer.table import Table, group_id, row
from tests.flows.commands import Rft, trained


def test_show_says_how_a_run_stands(rft: Rft, table: Table) -> None:
    trained(table)
    leases = table.lease(3, 3)
    table.append("step-3", leases[:1])
    table.append("unrewarded", leases[1:2], rewards=(None, None))
    table.catalog.versions.acknowledge("explorer-0", 2)
    table.catalog.history.pin("before")
    done = rft("show", "asked")
    assert (done.code, done.err) == (0, "")
    for line in (
        "steps: 2 of 6",
        "waits for: the trainer is not running; step 3 is the next",
        "trainer: none",
        "segments: 4",
        "rows: 12",
        "pinned: before",
        "leases: 7",
    ):
        assert line in done.out.splitlines(), done.out
    shown = json.loads(rft("show", "asked", "--json").out)
    assert shown["fates"] == {"trained": 4, "ready": 1, "pending": 1, "in_flight": 1}
    assert shown["groups_that_wait_for"] == {"labels": 1, "shaping": 1, "training": 0}
    assert shown["last_batch"] == {"step": 2, "groups": 2, "staleness": 1}
    assert shown["explorers"] == [{"explorer": "explorer", "open leases": 1, "first expires in": "60 s"}]
    assert shown["readers"] == [{"reader": "explorer-0", "uses version": 2, "seen": "0 s ago"}]
    assert shown["versions"] == [{"version": number, "files": f"weights/v00000{number}"} for number in (1, 2)]
    assert shown["damaged"] == []
    assert shown["bytes"] == sum(path.stat().st_size for path in (table.run_dir.root / "segments").iterdir())


def test_show_says_what_came_to_nothing_and_why(rft: Rft, table: Table) -> None:
    leases = table.lease(3)
    table.append("a", leases)
    dropped = {group_id(lease): "drop_no_signal: all rewards are equal" for lease in leases[:2]}
    shaped = {group_id(lease): [Shaped(row(lease).experience_id, 1.0)] for lease in leases}
    table.store.overlay("a", shaped, [], dropped)
    shown = json.loads(rft("show", "asked", "--json").out)
    assert shown["came_to_nothing"] == [{"fate": "dropped", "reason": "drop_no_signal: all rewards are equal", "leases": 2}]


def test_show_names_the_trainer_and_what_it_waits_for(rft: Rft, table: Table) -> None:
    table.take_over("process 1 on mill")
    table.append("a", table.lease(2))
    shown = json.loads(rft("show", "asked", "--json").out)
    assert shown["trainer"] == "process 1 on mill, heard of 0 s ago"
    assert shown["waits_for"] == "4 more groups: 0 ready of 4, 2 groups to shape"


def test_show_notices_damage_without_reading(rft: Rft, table: Table) -> None:
    trained(table)
    table.segment_file("step-1").unlink()
    table.segment_file("step-2").write_bytes(b"torn")
    shutil.rmtree(table.run_dir.version(1))
    done = rft("show", "asked")
    assert done.code == 1
    assert done.complaints == ["rft: 3 files are missing or damaged; `rft fsck asked` says what to do"]
    damaged = json.loads(rft("show", "asked", "--json").out)["damaged"]
    assert [one["problem"].partition(",")[0] for one in damaged] == ["is missing", "has 4 bytes", "is missing"]


@pytest.mark.parametrize("came", ["append", "compaction"])
def test_what_comes_while_the_files_are_listed_is_no_damage(rft: Rft, table: Table, came: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(table)
    listing, coming = LocalStorage._list, [came]

    def meanwhile(storage: LocalStorage, folder: str) -> Iterator[tuple[str, Stat]]:
        found = list(listing(storage, folder))
        if "append" in coming:
            coming.clear()
            table.append("meanwhile", table.lease(1, 3))
        elif coming:
            coming.clear()
            assert compact(table.open, RetentionConfig(), 100, grace_s=0.0).deleted > 0
            found = list(listing(storage, folder))
        return iter(found)

    monkeypatch.setattr(LocalStorage, "_list", meanwhile)
    done = rft("show", "asked", "--json")
    assert (done.code, done.err, coming) == (0, "", [])
    assert json.loads(done.out)["damaged"] == []


def test_a_version_that_is_collected_while_its_files_are_looked_for_is_no_damage(
    rft: Rft, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(table)
    resolve = RunDir.resolve

    def meanwhile(run_dir: RunDir, uri: str) -> Path:
        WeightStore(table.run_dir, table.catalog, 1, "tiny").collect(1, set())
        return resolve(run_dir, uri)

    monkeypatch.setattr(RunDir, "resolve", meanwhile)
    done = rft("show", "asked", "--json")
    assert (done.code, json.loads(done.out)["damaged"]) == (0, [])
    assert not table.run_dir.version(1).exists()


def test_leases_are_as_many_as_their_fates(rft: Rft, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(table)
    fates = Leases.fates

    def and_another(leases: Leases) -> dict[str, int]:
        found = fates(leases)
        table.lease(1, 3)
        return found

    monkeypatch.setattr(Leases, "fates", and_another)
    shown = json.loads(rft("show", "asked", "--json").out)
    assert sum(shown["fates"].values()) == shown["leases"] == 4


WAITING = Counts(done=3, steps=6, wanted=8, trained_by="process 1")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (replace(WAITING, done=6), "nothing, the run is completed"),
        (replace(WAITING, ended=True), "nothing, the run is completed"),
        (replace(WAITING, trained_by=None, ready=8), "the trainer is not running; step 4 is the next"),
        (replace(WAITING, claimed=True), "nothing: step 4 has its batch"),
        (replace(WAITING, ready=9), "nothing: 9 ready of 8"),
        (replace(WAITING, ready=3), "5 more groups: 3 ready of 8"),
        (replace(WAITING, ready=3, in_flight=4, shaping=1), "5 more groups: 3 ready of 8, 4 leases in flight, 1 groups to shape"),
        (replace(WAITING, ready=3, labels=5), "labels of 5 groups: 3 ready of 8"),
        (replace(WAITING, ready=3, labels=5, due_in_s=240.0), "labels of 5 groups, the next due in 4 min: 3 ready of 8"),
        (replace(WAITING, labels=5, due_in_s=-3.0), "labels of 5 groups, the next due in 0 s: 0 ready of 8"),
        (replace(WAITING, labels=5, in_flight=1), "8 more groups: 0 ready of 8, 1 leases in flight, labels of 5 groups"),
    ],
)
def test_what_the_trainer_waits_for_is_one_line(counts: Counts, said: str) -> None:
    assert waits_for(counts) == said
