"""kv-cache: the formula, its check values, and what a written cache takes."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest

from headrace.lab.kv_cache.steps import growth, totals
from headrace.lab.parts.kv_memory import BLOCK, CHECK_VALUES, KVShape, variations, write_cache
from headrace.lab.parts.memory import FreshProcesses, anonymous_bytes, peak_of
from headrace.lab.parts.random_model import random_model
from headrace.ops.cost import CostModel
from headrace.ops.kv import KVFormat


def test_check_values() -> None:
    assert [shape.formula_bytes for shape in CHECK_VALUES] == [2 << 30, 512 << 20]
    [mha, gqa] = CHECK_VALUES
    longer = KVShape(mha.layers, mha.kv_heads, mha.head_dim, 4 * mha.positions, mha.format)
    assert longer.formula_bytes == 4 * mha.formula_bytes
    assert mha.formula_bytes == mha.kv_heads // gqa.kv_heads * gqa.formula_bytes


def test_the_formula_is_what_the_cost_interpreter_counts() -> None:
    for shapes in variations(KVShape(3, 2, 16, 48)).values():
        for shape in shapes:
            model = random_model(
                num_layers=shape.layers, num_heads=shape.kv_heads, num_kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
            )  # fmt: skip
            costs = CostModel(model, kv_format=shape.format)
            assert costs.kv_bytes_per_position * shape.positions == shape.formula_bytes


def test_a_written_cache_takes_what_the_formula_says() -> None:
    with FreshProcesses(["headrace.lab.parts.kv_memory"]) as fresh:
        for shape in (KVShape(4, 4, 64, 4000), KVShape(2, 3, 64, 16000, KVFormat.F32)):
            taken = fresh.call(write_cache, shape)
            assert taken == pytest.approx(shape.allocated_bytes, abs=300_000)
            pages = 2 * 4096 * shape.positions / BLOCK  # at most so many lie between the blocks
            assert 0 <= shape.allocated_bytes - shape.formula_bytes <= pages


def test_a_fresh_process_is_one_and_its_peak_is_counted() -> None:
    with FreshProcesses([]) as fresh:
        first, second = (fresh.call(_touch, 32 << 20) for _ in range(2))
    assert first[0] != os.getpid()
    assert first[0] != second[0]
    for _, peak, kept in (first, second):
        assert peak == pytest.approx(32 << 20, rel=0.1)
        assert kept < 4 << 20
    assert anonymous_bytes() > 1 << 20


def _touch(num_bytes: int) -> tuple[int, int, int]:
    peak, total = peak_of(lambda: float(np.ones(num_bytes // 8).sum()))
    assert total == num_bytes // 8
    return os.getpid(), peak.peak, peak.kept


def test_totals_of_steps_that_lie_on_a_line() -> None:
    lengths = [10, 20, 40, 80]
    sums = totals(lengths, [float(s) for s in lengths])
    exact = [sum((2 * i + 1) / 2 for i in range(s)) for s in lengths]  # the line's integral
    for (a, b), (c, d) in zip(itertools.pairwise(sums), itertools.pairwise(exact), strict=True):
        assert b - a == pytest.approx(d - c)


def test_growth_is_that_of_each_run_and_its_width_that_between_runs() -> None:
    lengths = [64, 256, 512, 1024]
    runs = [[1.0, *(3e-6 * s**e for s in lengths[1:])] for e in (1.9, 2.0, 2.2)]
    found = growth(lengths, runs)
    assert found.ends == pytest.approx((2.0, 1.9, 2.2))
    assert found.n == 3
