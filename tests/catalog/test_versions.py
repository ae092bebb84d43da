"""The ledger of weights, of who uses them, and of how they scored."""

import pytest
from sqlalchemy import update

from rft_core.catalog import Catalog, Evaluation, StoredFile, Version, best, schema
from rft_core.errors import LostClaimError, ReproducibilityError, RunError
from rft_core.processes import Process, identity_of, this_process
from tests.catalog.ledger import replace_trainer, rows, take_over
from tests.children import leave_dead, started


@pytest.fixture
def generation(catalog: Catalog) -> int:
    return take_over(catalog)


def score(catalog: Catalog, evaluation: Evaluation) -> None:
    """Write a score down, as whoever wrote its answers does."""
    catalog.segments.intend(evaluation.uri, evaluation.uri, "explorer")
    catalog.versions.record_evaluation(evaluation)


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
    other = Version(1, 1, "weights/1", "b")
    catalog.versions.check(other, generation)
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    for refuse in (catalog.versions.check, catalog.versions.record):
        with pytest.raises(ReproducibilityError, match="version 1 was made again with other bytes.*set checkpoint.every: 1"):
            refuse(other, generation)
    # Also when its files were collected meanwhile.
    catalog.versions.forget_files(1)
    with pytest.raises(ReproducibilityError):
        catalog.versions.record(other, generation)
    assert catalog.versions.all() == [Version(1, 1, None, "a")]
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    assert catalog.versions.all() == [Version(1, 1, "weights/1", "a")]


def test_a_version_that_lives_in_the_process_gets_its_files_later(catalog: Catalog, generation: int) -> None:
    catalog.versions.record(Version(1, 1, None, None), generation)
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    catalog.versions.record(Version(1, 1, None, None), generation)  # redone after a kill, before its checkpoint
    assert catalog.versions.all() == [Version(1, 1, "weights/1", "a")]


def test_versions_that_will_be_made_again_are_forgotten_with_their_scores(catalog: Catalog, generation: int) -> None:
    for number in (1, 2, 3):
        catalog.versions.record(Version(number, number, None, str(number)), generation)
        score(catalog, Evaluation("held_out", number, {}, "evaluations/x.parquet"))
    catalog.versions.retire(1, generation)
    assert [known.version for known in catalog.versions.all()] == [1]
    assert [scored.version for scored in catalog.versions.evaluations("held_out")] == [1]
    catalog.versions.record(Version(2, 2, None, "other bytes"), generation)


def test_a_replaced_trainer_takes_no_version_back(catalog: Catalog) -> None:
    old, new = replace_trainer(catalog, "the second")
    catalog.versions.record(Version(1, 1, None, "a"), new)
    with pytest.raises(LostClaimError, match="the second took over this run"):
        catalog.versions.retire(0, old)
    assert catalog.versions.all() == [Version(1, 1, None, "a")]


def test_a_reader_uses_one_version_until_it_lets_go(catalog: Catalog) -> None:
    catalog.versions.acknowledge("a", 1)
    catalog.versions.acknowledge("b\x00", 2)
    assert catalog.versions.in_use(within_s=60) == {1, 2}
    catalog.versions.acknowledge("a", 3)
    assert catalog.versions.in_use(within_s=60) == {2, 3}
    catalog.versions.release("b\x00")
    assert catalog.versions.in_use(within_s=60) == {3}


@pytest.mark.parametrize("moved_s", [-3600.0, 3600.0], ids=["long ago", "before the clock jumped back"])
def test_a_reader_that_was_not_seen_lately_is_dead(catalog: Catalog, moved_s: float) -> None:
    catalog.versions.acknowledge("a", 1)
    table = schema.readers
    with catalog._database.write() as connection:
        connection.execute(update(table).values(seen_at=table.c.seen_at + moved_s))
    assert catalog.versions.in_use(within_s=600) == set()
    catalog.versions.seen("a")
    assert catalog.versions.in_use(within_s=600) == {1}


def test_the_first_score_of_a_version_stays(catalog: Catalog) -> None:
    for name, version, reward in (("held_out", 10, 0.5), ("held_out", 2, 0.25), ("held_out", 10, 0.9), ("other", 2, 1.0)):
        score(catalog, Evaluation(name, version, {"reward": reward}, f"evaluations/{name}-{version}", str(reward)))
    assert [(one.version, one.metrics["reward"]) for one in catalog.versions.evaluations("held_out")] == [(2, 0.25), (10, 0.5)]
    assert catalog.versions.evaluation("held_out", 3) is None
    assert catalog.versions.answer_files() == [
        StoredFile("evaluations/held_out-2", 0, 0, "0.25"),
        StoredFile("evaluations/held_out-10", 0, 0, "0.5"),
        StoredFile("evaluations/other-2", 0, 0, "1.0"),
    ]


def test_the_best_version_is_the_first_of_those_that_scored_highest() -> None:
    scores = [
        (1, {"evaluation/reward": 0.9}),
        (2, {"evaluation/exact": 1.0, "evaluation/reward": 0.1}),
        (3, {"evaluation/exact": 1.0}),
        (4, {}),
    ]
    assert best([Evaluation("held_out", version, metrics, "x") for version, metrics in scores]) == 2
    assert best([]) is None


def test_a_pinned_version_says_why(catalog: Catalog, generation: int) -> None:
    catalog.versions.record(Version(1, 1, "weights/1", "a"), generation)
    catalog.versions.pin(1, "registered")
    assert catalog.versions.find(1) == Version(1, 1, "weights/1", "a", "registered")


def test_the_newest_version_with_files_is_what_explorers_follow(catalog: Catalog, generation: int) -> None:
    assert catalog.versions.newest() == 0
    for number, uri in ((1, "weights/1"), (2, "weights/2"), (3, None)):
        catalog.versions.record(Version(number, number, uri, uri and str(number)), generation)
    assert catalog.versions.newest() == 2
    catalog.versions.forget_files(2)
    assert catalog.versions.newest() == 1


def test_a_name_is_one_readers_while_it_may_be_at_work(catalog: Catalog) -> None:
    catalog.versions.enter("explorer-1", Process("process 7 on there", "there|7|1"))
    with pytest.raises(RunError, match=r"explorer-1 is at work already, last heard of 0 s ago; give this one another name"):
        catalog.versions.enter("explorer-1", this_process())
    catalog.versions.acknowledge("explorer-1", 3)
    with pytest.raises(RunError):
        catalog.versions.enter("explorer-1", this_process())
    catalog.versions.release("explorer-1")
    catalog.versions.enter("explorer-1", this_process())
    assert rows(catalog, "readers", "reader")[0]["version"] == -1


def test_the_name_of_a_dead_process_is_free_at_once(catalog: Catalog) -> None:
    with started("import sys; sys.stdin.read()") as child:
        catalog.versions.enter("explorer-1", Process("dead", identity_of(child.pid)))
        leave_dead(child)
        catalog.versions.enter("explorer-1", this_process())
