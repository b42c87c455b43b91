"""Stages recomputed from a trace of N candidates, against float64 on the whole distribution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ui.facts.resample import BETWEEN_ERROR, Known, Stage, Wish, resample

#: The server's own (docs/sampling.md).
GRID = (0.1, 0.15, 0.2, 0.25, 0.3, *(tenth / 10 for tenth in range(4, 21)), 3.0, 5.0)
NUM_IDS = 3000


def _softmax(z: np.ndarray) -> np.ndarray:
    weights = np.exp(z - z.max())
    return weights / weights.sum()


def _row(seed: int) -> np.ndarray:
    """Logits like a model's: a few likely ids, a long tail."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 2, NUM_IDS) + rng.exponential(1.5, NUM_IDS)


def _trace(z: np.ndarray, num_named: int) -> dict[str, Any]:
    """As the server gives it, computed here on all ids."""
    order = np.lexsort((np.arange(z.size), -z))[:num_named]
    log_z = [float(np.log(np.exp((z - z.max()) / t).sum()) + z.max() / t) for t in GRID]
    entropy = []
    for t in GRID:
        p = _softmax(z / t)
        entropy.append(float(-(p[p > 0] * np.log(p[p > 0])).sum()))
    after = {
        "num_candidates": int(z.size),
        "top": [{"id": int(i), "logit": float(z[i])} for i in order],
    }
    return {
        "stages": [{"name": "bias", "after": after}, {"name": "penalties", "after": after}],
        "grid": {"temperature": list(GRID), "entropy": entropy, "log_normaliser": log_z},
    }


def _truth(z: np.ndarray, wish: Wish) -> list[np.ndarray]:
    """The distribution of all ids after each stage, as docs/sampling.md has it."""
    p = _softmax(z / wish.temperature)
    order = np.lexsort((np.arange(z.size), -z))
    after = [p]
    keep = np.ones(z.size, bool)
    if 0 < wish.top_k < z.size:
        keep[order[wish.top_k :]] = False
    after.append(np.where(keep, p, 0) / p[keep].sum())
    if wish.typical_p < 1:
        q = after[-1]
        surprise = -np.log(np.where(q > 0, q, 1))
        entropy = float((q * surprise).sum())
        distance = np.where(q > 0, np.abs(surprise - entropy), np.inf)
        near = order[np.argsort(distance[order], kind="stable")]
        number = int(np.searchsorted(np.cumsum(q[near]), wish.typical_p - 1e-13) + 1)
        keep[near[number:]] = False
    after.append(np.where(keep, p, 0) / p[keep].sum())
    if wish.top_p < 1:
        q = after[-1]
        number = int(np.searchsorted(np.cumsum(q[order]), wish.top_p - 1e-13) + 1)
        keep[order[number:]] = False
    after.append(np.where(keep, p, 0) / p[keep].sum())
    if wish.min_p > 0:
        keep &= p >= wish.min_p * p[keep].max()
    after.append(np.where(keep, p, 0) / p[keep].sum())
    return after


def _holds(known: Known, stage: Stage, truth: np.ndarray, error: float) -> None:
    named = np.array(stage.probabilities)
    true = truth[list(known.ids)]
    num_true = int((truth > 0).sum())
    low, high = stage.num_candidates
    assert low <= num_true <= high
    tail = max(1 - true.sum(), 0.0)
    assert stage.tail_mass[0] - error <= tail <= stage.tail_mass[1] + error
    if not stage.why or all("between" in reason for reason in stage.why):
        assert low == high
        np.testing.assert_array_equal(named > 0, true > 0)
        np.testing.assert_allclose(named, true, rtol=error, atol=1e-300)
        entropy = -(truth[truth > 0] * np.log(truth[truth > 0])).sum()
        assert stage.entropy == pytest.approx(entropy, abs=30 * error)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 40),
    num_named=st.sampled_from([1, 8, 40, NUM_IDS]),
    temperature=st.sampled_from(GRID),
    top_k=st.sampled_from([0, 1, 5, 40, 100, NUM_IDS]),
    top_p=st.sampled_from([1.0, 0.1, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]),
    typical_p=st.sampled_from([1.0, 1.0, 0.1, 0.5, 0.9, 0.99]),
)
def test_exact_where_it_says_so_and_within_its_limits_elsewhere(
    seed: int, num_named: int, temperature: float, top_k: int, top_p: float, min_p: float,
    typical_p: float,
) -> None:  # fmt: skip
    z = _row(seed)
    known = Known.from_trace(_trace(z, num_named))
    wish = Wish(temperature, top_k, top_p, min_p, typical_p)
    for stage, truth in zip(resample(known, wish), _truth(z, wish), strict=True):
        _holds(known, stage, truth, 1e-9)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 40), temperature=st.floats(0.1, 5.0))
def test_between_two_temperatures_the_error_is_as_stated(seed: int, temperature: float) -> None:
    z = _row(seed)
    known, wish = Known.from_trace(_trace(z, 40)), Wish(temperature, top_k=20)
    stages = resample(known, wish)
    for stage, truth in zip(stages[:2], _truth(z, wish)[:2], strict=True):
        _holds(known, stage, truth, BETWEEN_ERROR)
    assert all("between" in reason for reason in stages[0].why)


def test_a_trace_that_names_all_is_exact_at_every_temperature() -> None:
    z = _row(3)[:50]
    known, wish = Known.from_trace(_trace(z, 50)), Wish(0.737, 20, 0.8, 0.01, 0.7)
    stages = resample(known, wish)
    assert not stages[-1].why
    for stage, truth in zip(stages, _truth(z, wish), strict=True):
        _holds(known, stage, truth, 1e-12)


def test_typical_is_exact_where_the_nearest_are_named_and_says_so_elsewhere() -> None:
    """It takes away the most probable one here: the others lie nearer to the entropy."""
    z = np.log(np.array([0.4] + [0.02] * 30))
    sure = resample(Known.from_trace(_trace(z, 31)), Wish(1.0, typical_p=0.5))[2]
    truth = _truth(z, Wish(1.0, typical_p=0.5))[2]
    assert truth[0] == sure.probabilities[0] == 0
    np.testing.assert_allclose(sure.probabilities, truth, rtol=1e-12)
    assert sure.num_candidates == (25, 25)
    unsure = resample(Known.from_trace(_trace(z, 5)), Wish(1.0, typical_p=0.5, top_p=0.9))
    assert "typical-p 0.5 depends on candidates beyond the 5" in " ".join(unsure[2].why)
    assert unsure[-1].why
    assert unsure[3].num_candidates[0] <= 25 <= unsure[2].num_candidates[1]


@pytest.mark.parametrize("wish", [Wish(0.0), Wish(1.0, top_p=0.0), Wish(0.0, 5, 0.9, 0.1)])
def test_greedy_keeps_the_first(wish: Wish) -> None:
    last = resample(Known.from_trace(_trace(_row(1), 10)), wish)[-1]
    assert last.probabilities == (1.0,) + (0.0,) * 9
    assert (last.num_candidates, last.entropy) == ((1, 1), 0.0)


def test_each_reason_is_told_once_it_holds() -> None:
    known = Known.from_trace(_trace(_row(2), 8))
    assert "top-k 50 keeps more" in " ".join(resample(known, Wish(1.0, top_k=50))[-1].why)
    assert "top-p 0.999 keeps more" in " ".join(resample(known, Wish(1.0, top_p=0.999))[-1].why)
    assert "min-p 0.0001 may keep" in " ".join(resample(known, Wish(1.0, min_p=0.0001))[-1].why)
    assert not resample(known, Wish(1.0, top_k=3, top_p=0.999))[-1].why


def test_the_order_of_the_default_chain() -> None:
    """Logits [3, 2, 1], top_p 0.8, T 0.5: temperature comes first (docs/sampling.md)."""
    known = Known.from_trace(_trace(np.array([3.0, 2.0, 1.0]), 3))
    stages = resample(known, Wish(0.5, top_p=0.8))
    assert stages[0].probabilities == pytest.approx((0.867, 0.117, 0.016), abs=5e-4)
    assert stages[3].probabilities == (1.0, 0.0, 0.0)
    assert stages[1].entropy == pytest.approx(
        -sum(p * math.log(p) for p in stages[0].probabilities)
    )


@pytest.mark.parametrize("trace", [{}, {"stages": []}, {"stages": [{}, {"after": {"top": []}}]}])
def test_a_trace_of_another_server_is_refused(trace: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be recomputed"):
        Known.from_trace(trace)
