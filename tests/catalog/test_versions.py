"""The ledger of weights, of who uses them, and of how they scored."""

import pytest

from rft_core.catalog import Catalog, Evaluation, Version
from rft_core.errors import ReproducibilityError


@pytest.fixture
def generation(catalog: Catalog) -> int:
    return catalog.claims.take_over("t")


def test_versions_are_found_in_the_order_of_their_numbers(catalog: Catalog, generation: int) -> None:
    for number in (10, 9, 2):
        catalog.versions.record(Version(number, number, f"weights/{number}", str(number)), generation)
    assert [known.version for known in catalog.versions.all()] == [2, 9, 10]
    assert catalog.versions.find(9) == Version(9, 9, "weights/9", "9")
    assert catalog.versions.find(3) is None


def test_the_same_bytes_again_change_nothing(catalog: Catalog, generation: int) -> None:
    for _ in range(2):
        catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    assert catalog.versions.all() == [Version(1, 1, "weights/1", "a")]


def test_other_bytes_for_a_known_version_are_refused(catalog: Catalog, generation: int) -> None:
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    with pytest.raises(ReproducibilityError, match="version 1 was made again with other bytes.*set checkpoint.every: 1"):
        catalog.versions.record(Version(1, 1, "weights/1", "b"), generation)
    # Also when its files were collected meanwhile.
    catalog.versions.forget_files(1)
    with pytest.raises(ReproducibilityError):
        catalog.versions.record(Version(1, 1, "weights/1", "b"), generation)
    assert catalog.versions.all() == [Version(1, 1, None, "a")]
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    assert catalog.versions.all() == [Version(1, 1, "weights/1", "a")]


def test_a_version_that_lives_in_the_process_gets_its_files_later(catalog: Catalog, generation: int) -> None:
    catalog.versions.record(Version(1, 1, None, None), generation)
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    catalog.versions.record(Version(1, 1, None, None), generation)  # redone after a kill, before its checkpoint
    assert catalog.versions.all() == [Version(1, 1, "weights/1", "a")]


def test_a_reader_uses_one_version_until_it_lets_go(catalog: Catalog) -> None:
    catalog.versions.acknowledge("a", 1)
    catalog.versions.acknowledge("b", 2)
    assert catalog.versions.in_use(within_s=60) == {1, 2}
    catalog.versions.acknowledge("a", 3)
    assert catalog.versions.in_use(within_s=60) == {2, 3}
    catalog.versions.release("b")
    assert catalog.versions.in_use(within_s=60) == {3}
    # Who was not seen lately is dead.
    assert catalog.versions.in_use(within_s=-1) == set()


def test_the_first_score_of_a_version_stays(catalog: Catalog) -> None:
    for name, version, reward in (("held_out", 10, 0.5), ("held_out", 2, 0.25), ("held_out", 10, 0.9), ("other", 2, 1.0)):
        catalog.versions.record_evaluation(Evaluation(name, version, {"reward": reward}, "evaluations/x.parquet"))
    assert [(one.version, one.metrics["reward"]) for one in catalog.versions.evaluations("held_out")] == [(2, 0.25), (10, 0.5)]
    assert catalog.versions.evaluation("held_out", 3) is None


def test_a_pinned_version_says_why(catalog: Catalog, generation: int) -> None:
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    catalog.versions.pin(1, "registered")
    assert catalog.versions.find(1) == Version(1, 1, "weights/1", "a", "registered")
