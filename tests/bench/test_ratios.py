"""Medians, paired ratios, shared beginnings."""

from __future__ import annotations

import pytest

from headrace.bench.ratios import Spread, common_prefix, paired_ratio, spread


def test_spread_is_median_and_extremes() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_a_ratio_pairs_values_of_the_same_repetition() -> None:
    ours, theirs = [10.0, 30.0, 80.0], [5.0, 10.0, 20.0]
    assert paired_ratio(ours, theirs) == Spread(3.0, 2.0, 4.0)


def test_a_slow_phase_that_hits_both_does_not_widen_the_ratio() -> None:
    theirs = [100.0, 55.0, 98.0]
    ratio = paired_ratio([4 * t for t in theirs], theirs)
    assert ratio is not None
    assert ratio.min == pytest.approx(4.0)
    assert ratio.max == pytest.approx(4.0)


def test_only_repetitions_that_both_finished_count() -> None:
    assert paired_ratio([10.0, 12.0, 50.0], [5.0]) == Spread(2.0, 2.0, 2.0)
    assert paired_ratio([], [5.0]) is None


@pytest.mark.parametrize(
    ("a", "b", "shared"),
    [([1, 2, 3], [1, 2, 4], 2), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([5], [6], 0)],
)
def test_common_prefix(a: list[int], b: list[int], shared: int) -> None:
    assert common_prefix(a, b) == shared
