"""The native matmul against its contract, bit by bit, and against float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from linear_oracle import (
    F32,
    FLOATS,
    FORMATS,
    MINIMUM_AT,
    SCALE_AT,
    Bytes,
    block_geometry,
    dequantised,
    linear,
    quantise_activations,
    random_weights,
)

from headrace.native import _core

ISAS: list[str] = _core.available_isas()
ROWS = (1, 15, 16, 17, 33, 100)  # N
TOKENS = (1, 2, 3, 4, 6, 7, 8, 9, 13, 16, 17, 25, 33)  # T: each way to cut tiles
QUANTISED = tuple(name for name in FORMATS if name not in FLOATS)


def columns(name: str) -> tuple[int, ...]:
    """Awkward K: anything for floats, whole blocks otherwise."""
    if name in FLOATS:
        return (1, 31, 32, 33, 64, 97, 544)
    return (32, 64, 96, 544) if block_geometry(name)[0] == 32 else (256, 512, 768)


CASES = [(name, k) for name in FORMATS for k in columns(name)]


def pack(name: str, data: Bytes, k: int, **options: object) -> _core.PackedMatrix:
    return _core.pack(FORMATS.index(name), data, len(data), k, **options)


def activations(tokens: int, k: int, seed: int = 1) -> F32:
    """Scales differ between tokens; some are exact zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, k)) * np.exp(rng.uniform(-4, 4, (tokens, 1)))
    x[rng.random(x.shape) < 0.1] = 0
    return x.astype(np.float32)


def bits(y: F32) -> np.ndarray:
    return y.view(np.uint32)


@cache
def exact_case(name: str, k: int) -> tuple[Bytes, F32, F32, F32]:
    """(weights [100, ·], x [33, k], bias [100], the contract's result [33, 100])."""
    data = random_weights(name, max(ROWS), k, seed=k)
    x = activations(max(TOKENS), k)
    bias = np.random.default_rng(2).standard_normal(max(ROWS)).astype(np.float32)
    return data, x, bias, linear(name, data, x, bias)


@pytest.mark.parametrize(("name", "k"), CASES)
@pytest.mark.parametrize("isa", ISAS)
def test_bits_are_those_of_the_contract(name: str, k: int, isa: str) -> None:
    """Every N × T, so 1 row = n rows too: all are cut from one oracle result."""
    data, x, bias, expected = exact_case(name, k)
    for n in ROWS:
        packed = pack(name, data[:n], k)
        for tokens in TOKENS:
            y = _core.matmul(packed, x[:tokens], bias[:n], isa)
            wrong = np.argwhere(y != expected[:tokens, :n])
            assert wrong.size == 0, f"N={n} T={tokens}: {len(wrong)} differ, first at {wrong[0]}"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_threads_and_token_groups_do_not_change_bits(name: str, isa: str) -> None:
    """300 tokens × 1280 columns need several token groups; the worker counts do not divide N."""
    k = 1280
    data = random_weights(name, 83, k, seed=3)
    x = activations(300, k)
    packed = pack(name, data, k)
    y = _core.matmul(packed, x, None, isa, 1)
    for threads in (2, 3, 5):
        np.testing.assert_array_equal(bits(_core.matmul(packed, x, None, isa, threads)), bits(y))
    for t in (0, 7, 150, 299):
        np.testing.assert_array_equal(
            bits(_core.matmul(packed, x[t : t + 1], None, isa, 2)[0]), bits(y[t])
        )
    np.testing.assert_array_equal(
        bits(_core.matmul(packed, x[40:47], None, ISAS[0], 2)), bits(y[40:47])
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_every_small_number_of_tokens_gives_the_same_rows(name: str, isa: str) -> None:
    """1 … 40 tokens: single rows, small tiles, and chunks of K unpacked for many. 25 blocks of 32
    (24 with super-blocks) are two chunks of unequal length; 10 panels are triples and pairs."""
    k = 32 * 25 if block_geometry(name)[0] in (1, 32) else 32 * 24
    data = random_weights(name, 147, k, seed=12)
    x = activations(40, k)
    packed = pack(name, data, k)
    y = _core.matmul(packed, x, None, isa)
    for tokens in range(1, 40):
        np.testing.assert_array_equal(
            bits(_core.matmul(packed, x[:tokens], None, isa)), bits(y[:tokens])
        )


@pytest.mark.parametrize("panels", range(1, 9))
@pytest.mark.parametrize("name", ["Q4_1", "Q4_K", "Q6_K"])
def test_every_small_number_of_panels_gives_the_same_columns(name: str, panels: int) -> None:
    """Tiles of 3, 2 and 1 panels, a last panel that is not full, one to three workers."""
    k, n = 768, 16 * panels - 5
    data = random_weights(name, n, k, seed=13)
    x = activations(21, k)
    expected = linear(name, data, x)
    for threads in (1, 2, 3):
        y = _core.matmul(pack(name, data, k), x, None, None, threads)
        np.testing.assert_array_equal(bits(y), bits(expected))


@pytest.mark.parametrize("isa", ISAS)
def test_rounding_four_blocks_together_is_rounding_each(isa: str) -> None:
    """Rows of 4, 5, 6, 7 blocks, with tiny, zero and non-finite blocks in every place."""
    rng = np.random.default_rng(14)
    for blocks in (4, 5, 6, 7, 9):
        k = 32 * blocks
        data = random_weights("Q5_1", 16, k, seed=15)
        x = activations(4 * blocks, k, seed=blocks)
        for row, block in enumerate(x.reshape(-1, blocks, 32)):
            block[row % blocks] *= np.float32((0, 1e-37, 1e-30, 1e33)[row // blocks % 4])
            block[(row + 2) % blocks, rng.integers(32)] *= 50  # a lone large number
            if row % 7 == 3:
                block[(row + 1) % blocks, 5] = np.nan
        y = _core.matmul(pack("Q5_1", data, k), x, None, isa)
        np.testing.assert_array_equal(y, linear("Q5_1", data, x))


@pytest.mark.parametrize("name", FORMATS)
def test_close_to_float64_on_dequantised_weights(name: str) -> None:
    """The error is at most the activations' rounding plus that of the sums."""
    k, tokens = 768, 9
    data = random_weights(name, 50, k, seed=4)
    x = activations(tokens, k)
    w = dequantised(name, data).astype(np.float64)
    y = _core.matmul(pack(name, data, k), x)
    reach = np.abs(x.astype(np.float64)) @ np.abs(w).T
    if name in QUANTISED:
        half_steps = np.repeat(quantise_activations(x).scale.astype(np.float64) / 2, 32, axis=1)
        # code · scale and minimum may cancel in w: their roundings are relative to the parts.
        bound = half_steps @ np.abs(w).T * (1 + 1e-5) + 2e-5 * reach + 1e-4
    else:
        # x rounded to 8 bits; ⌈K/32⌉ + 32 roundings of partial sums
        bound = reach * (2.0**-9 * (name == "BF16") + (k // 32 + 32) * 2.0**-24)
    error = np.abs(y - x.astype(np.float64) @ w.T)
    assert (error <= bound).all(), f"worst {np.max(error / bound):.3g} of the bound"


@pytest.mark.parametrize("name", FORMATS)
def test_identity_gives_the_weights_of_the_gguf_package(name: str) -> None:
    """x = 127·I is exact in every activation format (codes 127, scale 1)."""
    k = 256
    data = random_weights(name, 40, k, seed=5)
    y = _core.matmul(pack(name, data, k), 127 * np.eye(k, dtype=np.float32))
    w = 127.0 * dequantised(name, data).astype(np.float64).T
    parts = 127 * 0.02 * 64  # largest |d·sc·code| is below 64 · 64 · 0.02
    np.testing.assert_allclose(y, w, rtol=1e-6, atol=1e-5 * parts * (name in QUANTISED))


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_saturate(name: str, isa: str) -> None:
    """The largest codes against ±127: AVX2's 16-bit pair sums would overflow if misused."""
    k = 512
    numbers, size = block_geometry(name)
    data = np.empty((4, k // numbers, size), np.uint8)
    data[...] = np.array([0x00, 0xFF, 0x80, 0x7F], np.uint8)[:, None, None]
    one = np.float16(1).reshape(1).view(np.uint8)
    for at in (SCALE_AT.get(name, 0), MINIMUM_AT.get(name)):
        if at is not None:
            data[..., at : at + 2] = one
    data = data.reshape(4, -1)
    x = np.ones((4, k), np.float32)
    x[1] = -1
    x[2, ::2] = -1
    x[3, 1::2] = -1
    y = _core.matmul(pack(name, data, k), x, None, isa)
    np.testing.assert_array_equal(y, linear(name, data, x))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_non_finite_activations_poison_their_own_row_only(
    name: str, isa: str, poison: float
) -> None:
    k = 512
    data = random_weights(name, 20, k, seed=6)
    x = activations(5, k)
    packed = pack(name, data, k)
    clean = _core.matmul(packed, x, None, isa)
    x[2, 300] = poison
    y = _core.matmul(packed, x, None, isa)
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(bits(y[others]), bits(clean[others]))
    if name in QUANTISED or np.isnan(poison):
        assert np.isnan(y[2]).all()
    else:
        assert not np.isfinite(y[2]).any()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("isa", ISAS)
def test_zeros_and_denormals(name: str, isa: str) -> None:
    """All-zero and denormal rows give +0, and the caller's denormals survive the call."""
    k = 256
    data = random_weights(name, 20, k, seed=7)
    x = np.zeros((3, k), np.float32)
    x[1] = 1e-39  # denormal
    x[2] = -1e-39
    y = _core.matmul(pack(name, data, k), x, None, isa)
    np.testing.assert_array_equal(np.abs(y), np.zeros_like(y))
    assert np.float32(1e-39) * np.float32(0.5) != 0


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("isa", ISAS)
def test_tiny_and_huge_blocks(name: str, isa: str) -> None:
    """Block maxima around 2^-120 (below: zero) and near the largest float, side by side."""
    k = 512
    data = random_weights(name, 20, k, seed=8)
    x = activations(6, k)
    for row, exponent in enumerate((-121, -119, -112, 100, 120)):
        block = x[row, 32:64]
        x[row, 32:64] = block / np.abs(block).max() * np.float32(2.0**exponent)
    x[5, :32] = 0
    y = _core.matmul(pack(name, data, k), x, None, isa)
    np.testing.assert_array_equal(y, linear(name, data, x))


@pytest.mark.parametrize("name", FORMATS)
def test_row_order_threads_and_size_of_packing(name: str) -> None:
    k, n = 1024, 2100  # above a megabyte for every format, so that threads are used
    data = random_weights(name, n, k, seed=9)
    order = np.random.default_rng(10).permutation(n).astype(np.int32)
    x = activations(2, k)
    plain = pack(name, data, k)
    y = _core.matmul(plain, x)
    ordered = pack(name, data, k, row_order=order, threads=3)
    np.testing.assert_array_equal(bits(_core.matmul(ordered, x)), bits(y[:, order]))
    panels = -(-n // 16)
    assert 0 <= plain.nbytes - panels * 16 * data.shape[1] <= 64 * panels
    assert (plain.format, plain.n, plain.k) == (FORMATS.index(name), n, k)


def bad_calls() -> Iterator[tuple[str, dict[str, object], str]]:
    good: dict[str, object] = {
        "format": FORMATS.index("Q4_K"),
        "data": np.zeros((4, 144), np.uint8),
        "n": 4,
        "k": 256,
    }
    order = np.array([0, 1, 2, 4], np.int32)
    yield "format", {**good, "format": len(FORMATS)}, r"format is \d+, expected 0 … \d+"
    yield "negative format", {**good, "format": -1}, r"format is -1"
    yield "K", {**good, "k": 128}, r"K \(columns\) is 128, not a multiple of 256 as Q4_K needs"
    yield "no K", {**good, "k": 0}, r"K \(columns\) is 0, expected 1 … 2147483647"
    yield "absurd K", {**good, "k": 2**62}, r"K \(columns\) is 4611686018427387904, expected"
    yield "absurd N", {**good, "n": 2**31}, r"N \(rows\) is 2147483648"
    yield "N", {**good, "n": 5}, r"rows of data is 4, expected 5"
    yield "row bytes", {**good, "k": 512}, r"bytes of a row of data is 144, expected 288"
    yield "order length", {**good, "row_order": order[:3]}, r"length of row_order is 3"
    yield "order range", {**good, "row_order": order}, r"row_order\[3\] is 4, expected 0 … 3"
    yield "order sign", {**good, "row_order": order - 1}, r"row_order\[0\] is -1"
    yield "threads", {**good, "threads": 0}, r"threads must be at least 1"


@pytest.mark.parametrize(
    ("arguments", "message"), [pytest.param(a, m, id=i) for i, a, m in bad_calls()]
)
def test_packing_names_what_does_not_fit(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.pack(**arguments)


def test_matmul_names_what_does_not_fit() -> None:
    packed = pack("F32", random_weights("F32", 3, 8, seed=11), 8)
    with pytest.raises(ValueError, match=r"K \(columns of x\) is 9, expected 8"):
        _core.matmul(packed, np.zeros((1, 9), np.float32))
    with pytest.raises(ValueError, match=r"N \(length of bias\) is 4, expected 3"):
        _core.matmul(packed, np.zeros((1, 8), np.float32), np.zeros(4, np.float32))
    assert _core.matmul(packed, np.zeros((0, 8), np.float32)).shape == (0, 3)


@pytest.mark.parametrize("name", QUANTISED)
def test_rows_of_many_blocks_are_rounded_block_by_block(name: str) -> None:
    """Sixteen blocks are rounded together where a level can; zero, tiny, infinite and NaN blocks in
    any of their places, and what is left over, must not be noticed by their neighbours."""
    k = 512 * 2 + 256
    data = random_weights(name, 20, k, seed=9)
    x = activations(40, k)
    for block in range(40):
        special = (0.0, 1e-38, np.nan, np.inf)[block % 4]
        x[block, 32 * block : 32 * block + 32] = special
    packed = pack(name, data, k)
    alone = _core.matmul(packed, x, None, "avx2")
    for isa in ISAS:
        y = _core.matmul(packed, x, None, isa)
        np.testing.assert_array_equal(np.isnan(y), np.isnan(alone))
        np.testing.assert_array_equal(y, alone)  # NaN where NaN
    finite = [row for row in range(40) if row % 4 < 2]
    np.testing.assert_array_equal(alone[finite], linear(name, data, x[finite]))
