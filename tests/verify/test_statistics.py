"""Deviation figures against exact values and plain re-computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.verify.statistics import (
    Deviation,
    PromptReference,
    compare,
    deviation,
    figures,
    log_normaliser,
    partition_kl,
)


def reference_of(logits: np.ndarray, kept: int) -> PromptReference:
    order = np.argsort(-logits, axis=1, kind="stable")
    ids = order[:, :kept].astype(np.int32)
    rows = np.arange(len(logits))[:, None]
    ranked = logits[rows, order]
    return PromptReference(
        ids,
        logits[rows, ids],
        log_normaliser(logits),
        order[:, 0].astype(np.int32),
        ranked[:, 0] - ranked[:, 1],
    )


def exact_kl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    log_p = a.astype(np.float64) - log_normaliser(a)[:, None]
    log_q = b.astype(np.float64) - log_normaliser(b)[:, None]
    return (np.exp(log_p) * (log_p - log_q)).sum(axis=1)


def logits(seed: int, rows: int = 6, columns: int = 50, scale: float = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, columns)) * scale).astype(np.float32)


def test_everything_kept_gives_the_exact_kl() -> None:
    a, b = logits(0), logits(1)
    got = deviation(reference_of(a, 50), b)
    assert got.kl == pytest.approx(exact_kl(a, b), rel=1e-9)
    assert got.abs_delta.size == 300
    assert np.sort(got.abs_delta) == pytest.approx(
        np.sort(np.abs(a.astype(np.float64) - b).ravel()), abs=0
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 49), st.floats(0.0, 2.0))
def test_partition_kl_is_a_lower_bound_that_grows_with_the_kept(
    seed: int, kept: int, noise: float
) -> None:
    a = logits(seed)
    b = (a + noise * logits(seed + 1, scale=1)).astype(np.float32)
    less, more = (deviation(reference_of(a, k), b).kl for k in (kept, kept + 1))
    # A rest of the reference below 1e-7 is left out, which can lose 1e-7 · ln(1e-7 / 1e-12).
    assert np.all(less <= more + 2e-6)
    assert np.all(more <= exact_kl(a, b) + 2e-6)
    assert np.all(less >= 0)


def test_equal_logits_deviate_by_nothing() -> None:
    a = logits(3)
    got = figures([deviation(reference_of(a, 9), a)] * 2)
    assert (got.flips, got.largest_flipped_gap, got.p99_abs_delta) == (0, 0.0, 0.0)
    assert got.mean_kl < 1e-12
    assert got.num_positions == 12


def test_a_shift_is_a_delta_but_no_kl_and_no_flip() -> None:
    a = logits(4)
    got = figures([deviation(reference_of(a, 9), a + np.float32(2))])
    assert (got.flips, got.p99_abs_delta) == (0, pytest.approx(2, abs=1e-5))
    assert got.mean_kl < 1e-6


def test_flips_carry_the_references_gap() -> None:
    a = np.array([[5, 4.5, 0], [9, 1, 0], [1, 2, 0]], dtype=np.float32)
    b = np.array([[4, 4.5, 0], [1, 9, 0], [1, 2, 0]], dtype=np.float32)
    got = figures([deviation(reference_of(a, 3), b)])
    assert (got.flips, got.largest_flipped_gap) == (2, 8.0)


def test_non_finite_logits_are_refused() -> None:
    a = logits(5)
    b = a.copy()
    b[2, 3] = np.nan
    with pytest.raises(ValueError, match="NaN or an infinity"):
        deviation(reference_of(a, 9), b)


def test_a_rest_of_rounding_noise_counts_for_nothing() -> None:
    log_p = np.log(np.array([[0.75, 0.25]]))
    log_q = np.log(np.array([[0.75, 0.25 * (1 - 1e-9)]]))
    assert partition_kl(log_p, log_q)[0] < 1e-8


def made_up(seed: int, factor: float, prompts: int = 32) -> list[Deviation]:
    """Deviations whose prompts differ a lot from each other, but alike for every factor."""
    rng = np.random.default_rng(seed)
    result = []
    for size in rng.lognormal(0, 1, prompts):
        values = np.abs(rng.standard_normal(1000)) * size * factor
        gaps = np.full(int(10 * size), 0.1)
        result.append(Deviation(gaps, values, np.full(64, size * size * factor)))
    return result


def test_p99_is_the_order_statistic() -> None:
    some = made_up(1, 1.0)
    pool = np.sort(np.concatenate([d.abs_delta for d in some]))
    assert figures(some).p99_abs_delta == pool[len(pool) - 1 - len(pool) // 100]
    assert np.mean(pool <= figures(some).p99_abs_delta) >= 0.99


def test_pairing_removes_the_spread_between_prompts() -> None:
    ours, theirs = made_up(1, 1.1), made_up(1, 1.0)
    got = compare(ours, theirs, num_resamples=300)
    assert got["mean_kl"].ratio == pytest.approx(1.1)
    assert (got["mean_kl"].low, got["mean_kl"].high) == pytest.approx((1.1, 1.1))
    assert got["p99_abs_delta"].low == pytest.approx(1.1)
    assert got["flips"].ratio == 1.0
    unpaired = compare(made_up(2, 1.1), theirs, num_resamples=300)
    assert unpaired["mean_kl"].low < 0.9 < unpaired["mean_kl"].high
    assert compare(ours, theirs, num_resamples=50) == compare(ours, theirs, num_resamples=50)


def test_bootstrap_matches_resampling_by_hand() -> None:
    ours, theirs = made_up(1, 1.0, 8), made_up(2, 1.0, 8)
    got = compare(ours, theirs, num_resamples=200, seed=3)
    drawn = np.random.default_rng(3).integers(0, 8, (200, 8))
    ratios = [
        figures([ours[i] for i in row]).p99_abs_delta
        / figures([theirs[i] for i in row]).p99_abs_delta
        for row in drawn
    ]
    low, high = np.percentile(ratios, [2.5, 97.5], method="nearest")
    assert (got["p99_abs_delta"].low, got["p99_abs_delta"].high) == (low, high)


def test_no_error_at_all_on_both_sides_is_a_ratio_of_one() -> None:
    none = [Deviation(np.zeros(0), np.zeros(100), np.zeros(4))] * 3
    some = [Deviation(np.ones(1), np.ones(100), np.ones(4))] * 3
    assert compare(none, none, 10)["flips"].ratio == 1.0
    assert compare(some, none, 10)["mean_kl"].ratio == float("inf")
    with pytest.raises(ValueError, match="3 prompts of ours against 2"):
        compare(some, some[:2])
