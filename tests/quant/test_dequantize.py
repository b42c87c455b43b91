"""Every number format against the `gguf` package's dequantiser, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from headrace.quant.dequantize import (
    dequantize,
    dequantize_bytes,
    dequantize_rows,
    dequantized_slices,
)
from headrace.quant.formats import FORMATS, Q4_1, Q6_K
from headrace.quant.tensor import HostTensor

ALL = list(FORMATS.values())


def oracle(data, number_format):
    with np.errstate(all="ignore"):
        if number_format.name == "F16":
            return data.view(np.float16).astype(np.float32)
        kind = gguf.GGMLQuantizationType(number_format.ggml_type)
        return gguf.quants.dequantize(data, kind)


def assert_same_bits(ours, theirs):
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def random_tensor(number_format, rows, blocks, seed=0):
    """Any bytes at all: every code, every scale, infinities and NaN included."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, blocks * number_format.block_bytes), dtype=np.uint8)
    return HostTensor(number_format, (rows, blocks * number_format.block_size), data)


def test_geometry_is_ggmls():
    for number_format in ALL:
        kind = gguf.GGMLQuantizationType(number_format.ggml_type)
        assert kind.name == number_format.name
        assert gguf.GGML_QUANT_SIZES[kind] == (number_format.block_size, number_format.block_bytes)


@pytest.mark.parametrize("number_format", ALL, ids=lambda f: f.name)
def test_random_blocks(number_format):
    tensor = random_tensor(number_format, 257, 9)
    assert_same_bits(dequantize(tensor), oracle(tensor.data, number_format))


@pytest.mark.parametrize("number_format", ALL, ids=lambda f: f.name)
def test_every_half_precision_scale(number_format):
    """All 65,536 values of each float16 field (for the plain formats: of each 16-bit half)."""
    blocks = np.random.default_rng(1).integers(
        0, 256, (65536, number_format.block_bytes), dtype=np.uint8
    )
    every = np.arange(65536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    elsewhere = {"Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108]}
    at = elsewhere.get(number_format.name, [0, 2] if number_format.block_bytes > 2 else [0])
    for i, place in enumerate(at):
        blocks[:, place : place + 2] = np.roll(every, 7919 * i, axis=0)
    assert_same_bits(dequantize_bytes(blocks, number_format), oracle(blocks, number_format))


@pytest.mark.parametrize("number_format", ALL, ids=lambda f: f.name)
def test_unaligned_and_read_only_bytes(number_format):
    tensor = random_tensor(number_format, 3, 2)
    buffer = b"\0" + tensor.data.tobytes()
    view = np.frombuffer(buffer, dtype=np.uint8)[1:].reshape(tensor.data.shape)
    moved = HostTensor(number_format, tensor.shape, view)
    assert_same_bits(dequantize(moved), oracle(tensor.data, number_format))


def test_rows_by_slice_ids_and_order():
    tensor = random_tensor(Q6_K, 40, 3)
    whole = dequantize(tensor)
    assert_same_bits(dequantize_rows(tensor, slice(5, 17)), whole[5:17])
    ids = np.array([39, 0, 7, 7, 12])
    assert_same_bits(dequantize_rows(tensor, ids), whole[ids])
    assert dequantize_rows(tensor, slice(3, 3)).shape == (0, 768)
    order = np.random.default_rng(2).permutation(40).astype(np.int32)
    ordered = HostTensor(Q6_K, tensor.shape, tensor.data, order)
    assert_same_bits(dequantize(ordered), whole[order])
    assert_same_bits(dequantize_rows(ordered, ids), whole[order[ids]])
    with pytest.raises(AssertionError):
        dequantize_rows(tensor, np.array([40]))
    with pytest.raises(AssertionError):
        dequantize_rows(tensor, np.array([-1]))


def test_slices_cover_the_tensor_once():
    tensor = random_tensor(Q4_1, 23, 2)
    parts = list(dequantized_slices(tensor, 5))
    assert [start for start, _ in parts] == [0, 5, 10, 15, 20]
    assert_same_bits(np.concatenate([part for _, part in parts]), dequantize(tensor))


def test_more_rows_than_one_chunk():
    tensor = random_tensor(Q4_1, 9000, 8)
    assert tensor.rows * tensor.columns > 1 << 21
    assert_same_bits(dequantize(tensor), oracle(tensor.data, Q4_1))


def test_vectors_and_more_axes_keep_their_shape():
    vector = random_tensor(Q4_1, 1, 4)
    assert dequantize(HostTensor(Q4_1, (128,), vector.data)).shape == (128,)
    cube = HostTensor(Q4_1, (2, 3, 64), random_tensor(Q4_1, 6, 2).data)
    assert cube.rows == 6
    assert cube.num_bytes == cube.data.nbytes
    assert dequantize(cube).shape == (2, 3, 64)
