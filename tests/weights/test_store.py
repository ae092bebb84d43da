"""The weight store: published whole, verified when fetched, collected when nobody needs them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rft_core.catalog import Catalog
from rft_core.disk import file_sha256
from rft_core.errors import LostClaimError, ReproducibilityError, UserError, WeightsError
from rft_core.processes import Process
from rft_core.run_dir import RunDir
from rft_core.weights import WeightStore, fetch, newest_complete
from tests.buffer.damages import DAMAGES
from tests.disks import full_disk


class Weights:
    """A weight store with a source folder for each version."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = RunDir(folder / "run")
        self.run_dir.create()
        self.catalog = Catalog(f"sqlite:///{self.run_dir.catalog_file}")
        self.store = self.trainer()
        self._sources = folder / "sources"

    def trainer(self) -> WeightStore:
        """A new trainer, which takes over."""
        return WeightStore(self.run_dir, self.catalog, self.catalog.trainers.take_over(Process("process 9", ""), lease_s=-1.0), "the/base")

    def source(self, content: str) -> Path:
        folder = self._sources / content
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_text(f"weights {content}" * 100)
        (folder / "config.json").write_text("{}")
        return folder

    def publish(self, *versions: int) -> None:
        for version in versions:
            self.store.publish(version, version, self.source(str(version)))

    def on_disk(self) -> set[str]:
        return {path.name for path in self.run_dir.weights.iterdir()}


@pytest.fixture
def weights(tmp_path: Path) -> Iterator[Weights]:
    opened = Weights(tmp_path)
    yield opened
    opened.catalog.close()


def test_a_published_version_is_an_ordinary_folder(weights: Weights) -> None:
    source = weights.source("a")
    folder = weights.store.publish(12, 12, source)
    assert folder == weights.run_dir.root / "weights" / "v000012" == weights.store.fetch(12)
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "config.json", "manifest.json"}
    assert (folder / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    manifest = (folder / "manifest.json").read_text()
    for part in ('"version": 12', '"step": 12', '"base_model": "the/base"', file_sha256(source / "model.safetensors")):
        assert part in manifest
    assert weights.on_disk() == {"v000012"}


def test_known_hashes_are_taken_as_they_are(weights: Weights) -> None:
    source = weights.source("a")
    hashes = {name: file_sha256(source / name) for name in ("model.safetensors", "config.json")}
    assert weights.store.publish(1, 1, source, hashes) == weights.store.fetch(1)


def test_the_same_version_again_changes_nothing(weights: Weights) -> None:
    folder = weights.store.publish(1, 1, weights.source("a"))
    written = (folder / "model.safetensors").stat().st_ino
    before = weights.catalog.versions.all()
    assert weights.store.publish(1, 1, weights.source("a")) == folder
    assert (folder / "model.safetensors").stat().st_ino == written
    assert weights.catalog.versions.all() == before


def test_other_bytes_are_refused_and_the_published_ones_stay(weights: Weights) -> None:
    weights.store.publish(1, 1, weights.source("a"))
    with pytest.raises(ReproducibilityError, match="version 1 was made again with other bytes"):
        weights.store.publish(1, 1, weights.source("b"))
    assert (weights.store.fetch(1) / "model.safetensors").read_text().startswith("weights a")


def test_a_replaced_trainer_can_publish_nothing(weights: Weights) -> None:
    old = weights.store
    new = weights.trainer()
    new.publish(1, 1, weights.source("a"))
    for version, content in ((1, "b"), (2, "b")):
        with pytest.raises(LostClaimError, match="process 9 took over"):
            old.publish(version, version, weights.source(content))
    with pytest.raises(LostClaimError):
        old.publish_shared(2, 2)
    assert weights.on_disk() == {"v000001"}
    assert (new.fetch(1) / "model.safetensors").read_text().startswith("weights a")


def test_a_version_that_lives_in_the_process_has_no_files_until_it_is_published(weights: Weights) -> None:
    weights.store.publish_shared(3, 3)
    with pytest.raises(WeightsError, match=r"version 3 of .* has no files any more, or never had; choose one that `rft show` lists"):
        weights.store.fetch(3)
    weights.publish(3)
    weights.store.publish_shared(3, 3)
    assert weights.store.fetch(3).name == "v000003"


def test_an_unknown_version_is_named(weights: Weights) -> None:
    with pytest.raises(WeightsError, match="has no version 7; `rft show` lists the versions"):
        weights.store.fetch(7)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_publishing_again_heals_it(damage: Callable[[Path], None], name: str, weights: Weights) -> None:
    source = weights.source("a")
    # Not linked to its source: what happens to the one must not happen to the other.
    copied = shutil.copytree(source, source.with_name("copied"))
    folder = weights.store.publish(4, 4, source)
    damage(folder / name)
    with pytest.raises(WeightsError) as raised:
        weights.store.fetch(4)
    assert str(folder / name) in str(raised.value)
    assert "publish the version again from its checkpoint" in str(raised.value)
    weights.store.publish(4, 4, copied)
    assert weights.store.fetch(4) == folder


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_whole_version_is_used(damage: Callable[[Path], None], weights: Weights) -> None:
    """prime-rl PR #1712: the newest folder is torn; 10 is newer than 9."""
    weights.publish(2, 9, 10)
    weights.store.publish_shared(11, 11)
    versions = weights.catalog.versions.all()
    assert newest_complete(weights.run_dir, versions) == (10, weights.run_dir.version(10))
    damage(weights.run_dir.version(10) / "model.safetensors")
    assert newest_complete(weights.run_dir, versions) == (9, weights.run_dir.version(9))
    with pytest.raises(WeightsError, match="v000010"):
        fetch(weights.run_dir, versions[2], 10)
    for version in (2, 9):
        damage(weights.run_dir.version(version) / "manifest.json")
    with pytest.raises(WeightsError, match="holds no whole version"):
        newest_complete(weights.run_dir, versions)


def test_only_the_last_versions_stay(weights: Weights) -> None:
    weights.publish(*range(1, 8))
    assert weights.store.collect(keep=3, needed=set()) == []
    assert weights.on_disk() == {"v000005", "v000006", "v000007"}
    assert [known.version for known in weights.catalog.versions.all() if known.uri is not None] == [5, 6, 7]
    assert len(weights.catalog.versions.all()) == 7
    with pytest.raises(WeightsError, match="has no files any more"):
        weights.store.fetch(4)


def test_what_is_needed_pinned_or_in_use_stays(weights: Weights) -> None:
    weights.publish(*range(1, 8))
    weights.catalog.versions.pin(1, "registered")
    weights.catalog.versions.acknowledge("bench", 3)
    for _ in range(2):
        weights.store.collect(keep=1, needed={2, 99})
        assert weights.on_disk() == {"v000001", "v000002", "v000003", "v000007"}
    weights.catalog.versions.release("bench")
    weights.store.collect(keep=1, needed=set())
    assert weights.on_disk() == {"v000001", "v000007"}


def test_versions_that_will_be_made_again_are_taken_back(weights: Weights) -> None:
    weights.publish(1, 2, 3)
    weights.store.publish_shared(4, 4)
    weights.store.retire(after=1)
    assert weights.on_disk() == {"v000001"}
    assert [known.version for known in weights.catalog.versions.all()] == [1]
    assert weights.store.publish(2, 2, weights.source("other bytes")) == weights.store.fetch(2)


def test_versions_without_files_do_not_count_among_the_last(weights: Weights) -> None:
    weights.publish(1, 2, 3)
    for version in (4, 5, 6):
        weights.store.publish_shared(version, version)
    weights.store.collect(keep=2, needed=set())
    assert weights.on_disk() == {"v000002", "v000003"}


def test_nothing_published_is_nothing_to_collect(weights: Weights) -> None:
    weights.store.publish_shared(0, 0)
    assert weights.store.collect(keep=2, needed=set()) == []


def test_a_full_disk_is_one_line_and_the_retry_works(tmp_path: Path, weights: Weights) -> None:
    source = weights.source("a")
    (source / "model.safetensors").write_bytes(b"\1" * 2_000_000)
    with full_disk(tmp_path / "disk") as disk:
        if disk.limit is not None:
            pytest.skip("files are linked, not written, where no other disk can be mounted")
        (disk.folder / "weights").mkdir()
        weights.run_dir.weights.symlink_to(disk.folder / "weights")
        with pytest.raises(UserError) as raised:
            weights.store.publish(1, 1, source)
        assert str(raised.value).startswith(f"can't write below {weights.run_dir.weights} ({disk.message}), 1 MB are free there")
        assert {path.name for path in weights.run_dir.weights.iterdir()} == set()
        assert weights.catalog.versions.all() == []
        disk.make_room()
        assert weights.store.publish(1, 1, source) == weights.store.fetch(1)
