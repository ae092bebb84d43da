"""Public reports about checkpoints, published weights and disks that ran full. Each test cites its report."""

from pathlib import Path

import pytest

from rft_core.errors import WeightsError
from rft_core.trainer import manifest
from rft_core.weights import newest_complete
from tests.weights.test_store import Weights


@pytest.fixture
def weights(tmp_path: Path) -> object:
    opened = Weights(tmp_path)
    yield opened
    opened.catalog.close()


def test_b25_the_newest_complete_version_is_used(weights: Weights) -> None:
    """prime-rl PR #1712: the newest folder lacked its last file and was chosen all the same."""
    weights.publish(1, 2, 3)
    (weights.run_dir.version(3) / "model.safetensors").unlink()
    torn = weights.run_dir.version(2) / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    number, folder = newest_complete(weights.run_dir, weights.catalog.versions.all())
    assert (number, folder) == (1, weights.run_dir.version(1))
    for version in (2, 3):
        with pytest.raises(WeightsError, match=f"v00000{version}/model.safetensors is missing, torn or altered"):
            weights.store.fetch(version)


def test_b32_ten_comes_after_nine(weights: Weights, tmp_path: Path) -> None:
    """prime-rl PR #1084: 'the latest' of steps 5, 9 and 10 is 10, for versions and for checkpoints."""
    weights.publish(5, 9, 10)
    assert newest_complete(weights.run_dir, weights.catalog.versions.all())[0] == 10
    for name in ("5", "9", "10", "000007", ".000011.tmp-12"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert [path.name for path in manifest.ordered(tmp_path / "checkpoints")] == ["5", "000007", "9", "10"]


def test_b34_twenty_versions_leave_two(weights: Weights) -> None:
    """prime-rl PR #1231: published weights were never removed; 20 publishes with keep 2 leave 2, and what is pinned."""
    weights.publish(1)
    weights.catalog.versions.pin(1, "registered")
    for version in range(2, 21):
        weights.publish(version)
        assert weights.store.collect(keep=2, needed=set()) == []
        assert len(weights.on_disk() - {"v000001"}) <= 2
    assert weights.on_disk() == {"v000001", "v000019", "v000020"}


def test_b34_a_folder_that_cannot_be_removed_is_reported_and_tried_again(weights: Weights) -> None:
    """prime-rl PR #1763: an OSError while old weights were removed ended the run."""
    weights.publish(1, 2, 3)
    stuck = weights.run_dir.version(1)
    aside = stuck.rename(stuck.with_name("aside"))
    stuck.write_text("not a folder: nothing that removes folders can remove it, whoever runs it")
    for _ in range(2):
        assert weights.store.collect(keep=1, needed=set()) == [stuck]
        assert weights.on_disk() == {"v000001", "v000003", "aside"}
        with pytest.raises(WeightsError, match="has no files any more"):
            weights.store.fetch(1)
    stuck.unlink()
    aside.rename(stuck)
    assert weights.store.collect(keep=1, needed=set()) == []
    assert weights.on_disk() == {"v000003"}
