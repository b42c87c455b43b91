"""Number formats of the lab: exact references, sizes, and the comparison of predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.lab.formats.number_formats import (
    affine,
    compare,
    in_format,
    log_softmax,
    sizes,
    unquantised,
)
from headrace.lab.parts.tiny import tiny_model
from headrace.models.quantize import matrices, quantize
from headrace.quant.dequantize import dequantize
from headrace.quant.formats import F32, Q4_0, Q8_0


def test_the_worked_example() -> None:
    q, back = affine(5.2342, 0.1, 4)
    assert q == 56
    assert back == pytest.approx(5.2)
    assert 5.2342 - back == pytest.approx(0.0342)


def test_the_reference_has_the_very_numbers_of_the_file() -> None:
    stored = quantize(tiny_model(hidden=64), Q4_0, threads=1).model
    floats = unquantised(stored)
    assert not floats.config.tied_embeddings
    for name, tensor in matrices(stored):
        other = floats.weights[name]
        assert other.format is F32
        assert (dequantize(other) == dequantize(tensor)).all(), name


def test_formats_are_made_from_those_numbers() -> None:
    model = tiny_model(hidden=64)
    assert in_format(model, "file", 1) is model
    for name, kind in (("q8_0", Q8_0), ("q4_0", Q4_0)):
        made = in_format(model, name, 1)
        down = "layers.0.down"
        assert made.weights[down].format is kind
        error = np.abs(dequantize(made.weights[down]) - dequantize(model.weights[down]))
        widest = np.abs(dequantize(model.weights[down])).max()
        assert 0 < error.max() <= 2 * widest / (2**kind.naive_bits - 1)
    half = in_format(model, "bf16", 1)
    values = dequantize(model.weights["layers.0.down"])
    assert np.allclose(dequantize(half.weights["layers.0.down"]), values, rtol=2**-8, atol=0)


def test_naive_and_real_bytes() -> None:
    model = in_format(tiny_model(hidden=64), "q8_0", 1)
    counted = sum(t.rows * t.columns for _, t in matrices(model))
    found = sizes(model)
    assert found.formats == ("Q8_0",)
    assert found.naive == counted
    assert found.real == counted // 32 * 34


def test_predictions_are_compared_by_their_definitions() -> None:
    reference = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]], np.float32)) + 3
    moved = compare(reference, other, np.array([0, 1]))
    assert moved.kl == pytest.approx((0.5 * math.log(2) - 0.25 * math.log(2)) / 2, rel=1e-5)
    assert moved.more_loss == pytest.approx(math.log(2) / 2, rel=1e-5)
    assert moved.agrees == 0.5
    assert np.exp(log_softmax(other)).sum(axis=1) == pytest.approx([1, 1])
    assert compare(reference, reference, np.array([0, 1])).kl == 0.0
