"""Quantisers against the `gguf` package's, bit for bit, and against the format's own bound."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.quant.dequantize import dequantize
from headrace.quant.formats import BF16, F16, F32, FORMATS, Q4_K, Q8_0
from headrace.quant.quantize import quantize

PACKED = [FORMATS[name] for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")]
ALL = [F32, F16, BF16, *PACKED]


def oracle(values, number_format):
    kind = gguf.GGMLQuantizationType(number_format.ggml_type)
    return gguf.quants.quantize(values, kind).view(np.uint8).reshape(len(values), -1)


def awkward_values(seed):
    """Normal numbers over many magnitudes, with ties, zeros, equal and one-sided blocks."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((64, 256)) * 10.0 ** rng.integers(-4, 4, (64, 1))
    values[3] = 0
    values[4] = 1.5
    values[5] = np.abs(values[5])
    values[6] = -np.abs(values[6])
    values[7] = rng.integers(-8, 8, 256)
    values[8] = rng.integers(-127, 128, 256) * 0.5
    return values.astype(np.float32)


@pytest.mark.parametrize("number_format", ALL, ids=lambda f: f.name)
def test_same_bytes_as_gguf(number_format):
    for seed in range(4):
        values = awkward_values(seed)
        tensor = quantize(values, number_format)
        assert tensor.shape == values.shape
        np.testing.assert_array_equal(tensor.data, oracle(values, number_format))


@pytest.mark.parametrize("number_format", [F16, BF16], ids=lambda f: f.name)
def test_special_floats(number_format):
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    special = np.array(
        [0, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF, 0x3F808000],
        dtype=np.uint32,
    )
    values = np.concatenate([bits, special]).view(np.float32).reshape(1, -1)
    with np.errstate(all="ignore"):
        expected = oracle(values, number_format)
        np.testing.assert_array_equal(quantize(values, number_format).data, expected)


@pytest.mark.parametrize("number_format", PACKED, ids=lambda f: f.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_error_within_the_format(number_format, data):
    """No code is more than one step from its number: half a step of rounding, the other half for
    codes clipped at the top of the symmetric formats, and float16's rounding of the scale."""
    floats = st.floats(-1000, 1000, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3)
    block = np.array(data.draw(st.lists(floats, min_size=32, max_size=32)), dtype=np.float32)
    span = block.max() - min(block.min(), 0) if number_format.name.endswith("_1") else 0
    largest = np.abs(block).max()
    step = {
        "Q8_0": largest / 127 / 2,
        "Q4_0": largest / 8,
        "Q5_0": largest / 16,
        "Q4_1": span / 15 / 2,
        "Q5_1": span / 31 / 2,
    }[number_format.name]
    error = np.abs(dequantize(quantize(block, number_format)) - block).max()
    assert error <= step + 3 * 2.0**-11 * max(largest, span) + 1e-6


def test_denormal_blocks_become_zero():
    values = np.full((1, 32), 1e-42, dtype=np.float32)
    for number_format in PACKED:
        back = dequantize(quantize(values, number_format))
        assert np.abs(back).max() <= 1e-7


def test_refusals():
    with pytest.raises(ValueError, match="Q4_K has no quantiser"):
        quantize(np.zeros((1, 256), np.float32), Q4_K)
    with pytest.raises(ValueError, match="blocks of 32"):
        quantize(np.zeros((1, 33), np.float32), Q8_0)
    with pytest.raises(ValueError, match="not finite"):
        quantize(np.full((1, 32), np.nan, np.float32), Q8_0)
