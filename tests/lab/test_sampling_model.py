"""The float64 model of sampling: closed forms, and the plain-Python oracle of the sampler."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sampler_oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.params import DEFAULT_STAGES, SamplingParams
from headrace.lab.sampling.definition import (
    candidates,
    cross_entropy,
    distinct,
    entropy_at,
    entropy_slope,
    repeated,
    stages,
)
from headrace.lab.statistics import chi_square, chi_square_p

SMALL = np.array([3.0, 2.0, 1.0], np.float32)


def test_the_order_of_the_stages_matters_as_documented() -> None:
    params = SamplingParams(temperature=0.5, top_p=0.8)
    assert stages(candidates(SMALL, 3), params)["top_p"].ids.tolist() == [0]
    last = ("bias", "penalties", "top_k", "typical", "top_p", "min_p", "temperature")
    turned = stages(candidates(SMALL, 3), params.replace(stages=last))
    assert turned["top_p"].ids.tolist() == [0, 1]


@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=24),
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([0.0, 0.4, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([0.5, 1.0]),
    st.permutations(DEFAULT_STAGES[2:]),
)
@settings(max_examples=60, deadline=None)
def test_it_keeps_what_the_oracle_keeps(
    tenths: list[int], t: float, k: int, p: float, m: float, typical: float, order: list[str]
) -> None:
    # Irrational steps: sums that land on a border to the last bit would be decided by rounding.
    logits = np.array([x / 10 * math.sqrt(2) for x in tenths], np.float32)
    params = SamplingParams(
        temperature=t, top_k=k, top_p=p, min_p=m, typical_p=typical,
        stages=("bias", "penalties", *order),
    )  # fmt: skip
    found = stages(candidates(logits, len(logits)), params)
    d = sampler_oracle.Distribution({i: float(z) for i, z in enumerate(logits)}, len(logits))
    for name in params.stages:
        sampler_oracle.apply_stage(name, d, params, [], [], (), None)
        if name in found:
            assert found[name].ids.tolist() == d.order(), name
            _, _, entropy = d.weigh()
            assert found[name].entropy == pytest.approx(entropy, abs=1e-9)


def test_entropy_goes_from_0_to_ln_v_and_its_slope_is_the_variance() -> None:
    z = np.random.default_rng(1).normal(0, 3, 500)
    assert entropy_at(z, 0.01) == pytest.approx(0, abs=1e-6)
    assert entropy_at(z, 1e5) == pytest.approx(math.log(500), abs=1e-6)
    assert entropy_at(np.zeros(64), 1.0) == pytest.approx(math.log(64))
    for t in (0.3, 1.0, 2.0):
        measured = (entropy_at(z, t + 1e-5) - entropy_at(z, t - 1e-5)) / 2e-5
        assert entropy_slope(z, t) == pytest.approx(measured, rel=1e-5)
    assert cross_entropy(z, 1.0) == pytest.approx(entropy_at(z, 1.0))
    assert cross_entropy(z, 1e6) > cross_entropy(z, 1.0) > cross_entropy(z, 1e-2)


@pytest.mark.parametrize(("degrees", "point"), [(1, 3.841), (2, 5.991), (5, 11.070), (10, 18.307)])
def test_the_tail_of_chi_square(degrees: int, point: float) -> None:
    assert chi_square_p(point, degrees) == pytest.approx(0.05, rel=1e-3)


def test_chi_square_sees_a_wrong_law_and_not_a_right_one() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.0999, 0.0001])
    right = np.random.default_rng(2).multinomial(20_000, p)
    wrong = np.random.default_rng(2).multinomial(20_000, [0.38, 0.32, 0.2, 0.0999, 0.0001])
    assert chi_square(right, p)[0] > 0.01
    assert chi_square(right, p)[1] == 4
    assert chi_square(wrong, p)[0] < 1e-6


def test_repetition_of_texts() -> None:
    assert repeated([1, 2, 3, 4] * 5) == pytest.approx(13 / 17)
    assert repeated(list(range(50))) == 0.0
    assert distinct([1, 1, 1, 1], 1) == 0.25
    assert distinct([1], 4) == 1.0
