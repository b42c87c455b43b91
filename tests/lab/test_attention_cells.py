"""attention: the ways to compute it agree, and what is predicted of them follows from shapes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.lab.attention.cells import (  # noqa: E402
    Problem,
    Way,
    attention,
    inputs,
    measure,
    relative_error,
)
from headrace.lab.attention.problems import least_ratio  # noqa: E402
from headrace.lab.parts.memory import FreshProcesses  # noqa: E402
from headrace.limits.rates import MachineRates  # noqa: E402
from headrace.ops.kv import KVFormat  # noqa: E402

pytestmark = pytest.mark.torch
NAIVE = Way("naive", "naive", KVFormat.F32)
TILED = Way("tiled", "tiled", KVFormat.F32)
SDPA = Way("SDPA", "sdpa", KVFormat.F32)


@pytest.mark.parametrize("way", [NAIVE, TILED, SDPA], ids=lambda w: w.name)
@pytest.mark.parametrize("length", [1, 17, 300])
def test_every_way_is_attention(way: Way, length: int) -> None:
    problem = Problem(length, 3, dim=16, batch=2)
    qkv = inputs(problem)
    assert relative_error(problem, qkv, attention(way, problem, qkv, 1)) < 2e-6


@pytest.mark.parametrize("way", [NAIVE, TILED, SDPA], ids=lambda w: w.name)
def test_a_wrong_result_is_seen(way: Way) -> None:
    problem = Problem(40, 2, dim=16)
    qkv = inputs(problem)
    result = attention(way, problem, qkv, 1)
    assert relative_error(problem, qkv, result[:, ::-1].copy()) > 0.1
    q, k, v = qkv
    later = np.concatenate([k[:, 1:], k[:, :1]], axis=1)
    assert relative_error(problem, (q, later, v), result) > 0.1


def test_naive_holds_two_matrices_and_tiled_none() -> None:
    """The spec's figures: batch 4, 12 heads, 2,048 positions, two-byte numbers."""
    problem = Problem(2048, 12, batch=4)
    naive = Way("naive", "naive", KVFormat.BF16)
    assert 2 * problem.matrix_bytes(2) == pytest.approx(805e6, rel=0.001)
    assert problem.peak_bytes(naive) + problem.input_bytes(naive) == pytest.approx(860e6, rel=0.01)
    sdpa = Way("SDPA", "sdpa", KVFormat.BF16)
    assert problem.peak_bytes(sdpa) + problem.input_bytes(sdpa) == pytest.approx(50e6, rel=0.01)


def test_memory_is_measured_as_predicted() -> None:
    problem = Problem(1024, 4)
    with FreshProcesses(["headrace.lab.attention.cells"]) as fresh:
        naive = fresh.call(measure, NAIVE, problem, 1)
        tiled = fresh.call(measure, TILED, problem, 1)
    assert naive.peak_bytes == pytest.approx(problem.peak_bytes(NAIVE), rel=0.05)
    assert tiled.peak_bytes < problem.peak_bytes(TILED) + (2 << 20)
    assert max(naive.error, tiled.error) < 2e-6


def test_theleast_ratio_by_hand() -> None:
    rates = MachineRates(1e9, 1.0, 1.0, 1e9, 1, "x", 1)
    problem = Problem(4, 1, dim=1)  # 10 pairs of 4 operations; 4 times 16 scores of 4 bytes
    assert least_ratio(problem, rates) == pytest.approx((2 * 40 + 256) / 40)
