"""Figures that are worked out from others."""

from rft_core import metrics


def test_staleness_is_a_histogram_of_groups() -> None:
    found = metrics.staleness({0: 5, 2: 2, 8: 1, 11: 2})
    assert found == {
        metrics.STALENESS_MAX: 11.0,
        metrics.STALENESS_MEAN: 3.4,
        "batch/staleness_0": 5.0,
        "batch/staleness_2": 2.0,
        "batch/staleness_8_or_more": 3.0,
    }
    assert {metric.name for metric in metrics.described()} >= found.keys()


def test_an_empty_batch_lies_nothing_behind() -> None:
    assert metrics.staleness({}) == {metrics.STALENESS_MAX: 0.0, metrics.STALENESS_MEAN: 0.0}
