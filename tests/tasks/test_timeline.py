"""Where the wall time goes, by spans whose times are given."""

import pytest

from tasks.timeline import Timeline


def timeline(spans: list[tuple[str, float, float]], first_lease: float = 10.0, last_commit: float = 20.0) -> Timeline:
    made = Timeline()
    made._spans = spans
    made._marks = {"first_lease": first_lease, "last_commit": last_commit}
    return made


def test_orchestration_is_what_is_no_work() -> None:
    spans = [("rollout", 10.0, 14.0), ("shape", 14.0, 14.5), ("train", 14.5, 17.5), ("sync", 17.5, 18.0), ("checkpoint", 18.0, 19.0)]
    assert timeline(spans).train_wall_s == 10.0
    assert timeline(spans).orchestration_frac == pytest.approx(0.2)


def test_work_before_the_first_lease_or_after_the_last_commit_does_not_count() -> None:
    spans = [("evaluate", 5.0, 9.0), ("rollout", 9.0, 12.0), ("train", 19.0, 25.0), ("evaluate", 25.0, 30.0)]
    assert timeline(spans).orchestration_frac == pytest.approx(0.7)


def test_a_run_that_did_nothing_has_no_wall_time() -> None:
    made = Timeline()
    assert (made.train_wall_s, made.orchestration_frac, made.last("rollout"), made.total("rollout")) == (0.0, 0.0, 0.0, 0.0)
    made.mark_first_lease()
    assert (made.train_wall_s, made.orchestration_frac) == (0.0, 0.0)


def test_spans_of_a_kind_add_up() -> None:
    made = timeline([("rollout", 0.0, 1.0), ("train", 1.0, 3.0), ("rollout", 3.0, 7.0)])
    assert made.total("rollout") == 5.0
    assert made.last("rollout") == 4.0


def test_a_span_that_fails_is_recorded_all_the_same() -> None:
    made = Timeline()
    with pytest.raises(ValueError, match="x"), made.span("train"):
        raise ValueError("x")
    assert [kind for kind, _, _ in made._spans] == ["train"]
    assert made.total("train") >= 0.0


def test_the_first_lease_is_marked_once_and_the_last_commit_moves() -> None:
    made = Timeline()
    made.mark_first_lease()
    first = made._marks["first_lease"]
    made.mark_first_lease()
    made.mark_commit()
    made.mark_commit()
    assert made._marks["first_lease"] == first <= made._marks["last_commit"]
