"""Element-wise kernels, norms, rope and gathers against float64, at every level and thread count.

Bounds are derived from the arithmetic in docs/numerics.md; u = 2⁻²⁴ is half an ulp of float32.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from headrace.native import _core
from headrace.quant.formats import FORMATS

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
ops = _core.ops

ISAS = _core.available_isas()
U = 2.0**-24
TINY = 2.0**-126
COLUMNS = [1, 2, 15, 16, 17, 31, 33, 100, 576, 1037]
FORMAT_IDS = {name: i for i, name in enumerate(FORMATS)}  # step.h has the same order


def normal(shape: tuple[int, ...], seed: int = 0, scale: float = 1.0) -> F32:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def in_all_ways(call: Callable[..., F32]) -> F32:
    """The result, after a check that no level and no thread count changes a bit of it."""
    first = call(isa=ISAS[0], threads=1)
    for isa in ISAS:
        for threads in (1, 2, 3):
            other = call(isa=isa, threads=threads)
            same = (other.view(np.uint32) == first.view(np.uint32)) | (
                np.isnan(other) & np.isnan(first)
            )
            assert same.all(), f"{isa} with {threads} threads differs"
    return first


def assert_within(got: F32, exact: F64, bound: F64) -> None:
    error = np.abs(got.astype(np.float64) - exact)
    worst = float((error / np.maximum(bound, TINY)).max())
    assert worst <= 1, f"error is {worst:.3g} times its bound"


# ---- exp and tanh over the whole range --------------------------------------------------------


def all_kinds_of_floats() -> F32:
    """Every 997th bit pattern, NaN aside, and the neighbourhood of each border of exp and tanh."""
    strided = np.arange(0, 2**32, 997, dtype=np.uint64).astype(np.uint32).view(np.float32)
    edges = np.array(
        [0, -0.0, 1, 0.625, 9.01, 44, 88, 88.72284, 89, -87.33655, -87.68, -88, -103.98, -104],
        np.float32,
    )
    near = (
        (edges.view(np.uint32)[:, None] + np.arange(-200, 200)).astype(np.uint32).view(np.float32)
    )
    dense = np.random.default_rng(3).uniform(-104, 89, 500_000).astype(np.float32)
    x = np.concatenate([strided, near.ravel(), dense, np.array([np.inf, -np.inf], np.float32)])
    return x[~np.isnan(x)][None]


def ulps(got: F32, exact: F64) -> F64:
    """Error in units of the last place of the exact value, where that is a normal float."""
    spacing = np.spacing(np.maximum(np.abs(exact), TINY).astype(np.float32)).astype(np.float64)
    return np.abs(got.astype(np.float64) - exact) / spacing


def test_exp_over_the_whole_range() -> None:
    x = all_kinds_of_floats()
    with np.errstate(over="ignore"):
        exact = np.exp(x.astype(np.float64))
    y = ops.exp(x)
    largest = float(np.finfo(np.float32).max)
    inside = (exact >= TINY * (1 + 1e-6)) & (exact <= largest * (1 - 1e-6))
    assert np.count_nonzero(inside) > 1_000_000
    assert ulps(y[inside], exact[inside]).max() <= 1.1
    assert (y[exact < TINY * (1 - 1e-6)] == 0).all()  # subnormal results are flushed
    assert (y[exact > largest * (1 + 1e-6)] == np.inf).all()
    special = np.array([[0.0, -0.0, -np.inf, np.inf, np.nan]], np.float32)
    np.testing.assert_array_equal(ops.exp(special), [[1, 1, 0, np.inf, np.nan]])


def test_exp_of_nonpositive_has_the_bits_of_exp() -> None:
    x = all_kinds_of_floats()
    x = np.append(x[x <= 0], np.float32(np.nan))[None]
    y = in_all_ways(lambda **how: ops.exp_nonpositive(x, **how))
    np.testing.assert_array_equal(y, in_all_ways(lambda **how: ops.exp(x, **how)))


def test_tanh_over_the_whole_range() -> None:
    x = all_kinds_of_floats()
    y = in_all_ways(lambda **how: ops.soft_cap(x, 1.0, **how))  # 1 · tanh(x / 1)
    exact = np.tanh(x.astype(np.float64))
    inside = np.abs(exact) >= TINY
    assert ulps(y[inside], exact[inside]).max() <= 1.4
    assert (np.abs(y) <= 1).all()
    np.testing.assert_array_equal(y, -ops.soft_cap(-x, 1.0))
    special = np.array([[0.0, -0.0, np.inf, -np.inf, np.nan]], np.float32)
    np.testing.assert_array_equal(ops.soft_cap(special, 1.0), [[0, 0, 1, -1, np.nan]])
    assert np.signbit(ops.soft_cap(special, 1.0)[0, 1])


# ---- element by element -----------------------------------------------------------------------


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh"])
def test_gated(columns: int, kind: str) -> None:
    gate, up = normal((5, columns), 1, 8), normal((5, columns), 2)
    y = in_all_ways(lambda **how: ops.gated(gate, up, int(kind == "gelu_tanh"), **how))
    g, v = gate.astype(np.float64), up.astype(np.float64)
    if kind == "silu":
        exact = g / (1 + np.exp(-g)) * v
        bound = 6 * U * np.abs(exact)  # exp 2.1u, then a sum, a quotient and a product
    else:
        exact, bound = gelu_and_bound(g)
        exact, bound = exact * v, (bound + U * np.abs(exact)) * np.abs(v)
    assert_within(y, exact, bound)


def gelu_and_bound(x: F64) -> tuple[F64, F64]:
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    tanh = np.tanh(inner)
    # 6u of relative error reach tanh's argument; tanh adds 2.7u; 1 + tanh may cancel.
    error = 6 * U * np.abs(inner) * (1 - tanh**2) + 2.7 * U * np.abs(tanh) + U * (1 + tanh)
    return 0.5 * x * (1 + tanh), np.abs(0.5 * x) * (error + U * (1 + tanh))


@pytest.mark.parametrize("columns", COLUMNS)
def test_gelu(columns: int) -> None:
    x = normal((4, columns), 5, 4)
    exact, bound = gelu_and_bound(x.astype(np.float64))
    assert_within(in_all_ways(lambda **how: ops.gelu(x, **how)), exact, bound)


@pytest.mark.parametrize("columns", COLUMNS)
def test_soft_cap(columns: int) -> None:
    x = normal((4, columns), 6, 40)
    exact = 30 * np.tanh(x.astype(np.float64) / 30)
    y = in_all_ways(lambda **how: ops.soft_cap(x, 30.0, **how))
    assert_within(y, exact, 5 * U * np.abs(exact))  # quotient, tanh 2.7u, product


@pytest.mark.parametrize("columns", COLUMNS)
def test_exact_ops(columns: int) -> None:
    a, b = normal((7, columns), 8), normal((7, columns), 9)
    index = np.array([6, 0, 0, 3], np.int32)
    value = np.float32(0.1)
    for got, want in (
        (in_all_ways(lambda **how: ops.add(a, b, **how)), a + b),
        (in_all_ways(lambda **how: ops.scale(a, 0.1, **how)), a * value),
        (in_all_ways(lambda **how: ops.copy(a, **how)), a),
        (in_all_ways(lambda **how: ops.rows(a, index, **how)), a[index]),
    ):
        np.testing.assert_array_equal(got, want)


# ---- norms ------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("columns", COLUMNS)
def test_rms_norm(columns: int, groups: int) -> None:
    x, weight = normal((5, groups * columns), 10, 3), normal((columns,), 11)
    y = in_all_ways(lambda **how: ops.rms_norm(x, weight, 1e-5, groups, **how))
    parts = x.reshape(5, groups, columns).astype(np.float64)
    exact = parts / np.sqrt((parts**2).mean(-1, keepdims=True) + np.float32(1e-5)) * weight
    # The sum's relative error, halved by the root; then root, quotient and two products.
    bound = U * ((columns / 16 + 8) / 2 + 4) * np.abs(exact)
    assert_within(y, exact.reshape(5, -1), bound.reshape(5, -1))


@pytest.mark.parametrize("columns", [c for c in COLUMNS if c > 2])
def test_layer_norm(columns: int) -> None:
    x, weight, bias = (
        normal((5, columns), 12, 3) + 2,
        normal((columns,), 13),
        normal((columns,), 14),
    )
    x = x.astype(np.float32)
    y = in_all_ways(lambda **how: ops.layer_norm(x, weight, bias, 1e-5, **how))
    d = x.astype(np.float64)
    mean_size = np.abs(d).mean(-1, keepdims=True)
    d = d - d.mean(-1, keepdims=True)
    r = 1 / np.sqrt((d**2).mean(-1, keepdims=True) + np.float32(1e-5))
    exact = d * r * weight + bias
    steps = columns / 16 + 8
    mean_error = U * steps * mean_size  # reaches every d, and the variance through them
    scaled = np.abs(r * weight)
    bound = scaled * (mean_error + np.abs(d) * (U * steps + r * mean_error)) + U * np.abs(exact)
    assert_within(y, exact, bound)


def test_norms_of_extreme_rows() -> None:
    x = np.zeros((4, 20), np.float32)
    x[1] = 1e-30
    x[2, 3] = np.nan
    x[3] = 1e30  # the squares overflow: r = 0
    y = ops.rms_norm(x, np.ones(20, np.float32), 1e-6, 1)
    assert (y[0] == 0).all()
    assert np.isfinite(y[1]).all()
    assert np.isnan(y[2]).all()
    assert (y[3] == 0).all()
    z = ops.layer_norm(x[:3], np.ones(20, np.float32), np.full(20, 0.5, np.float32), 1e-6)
    assert (z[0] == 0.5).all()
    assert np.isnan(z[2]).all()


# ---- rope -------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "dim", "rotary"),
    [(1, 2, 2), (3, 8, 8), (9, 64, 64), (2, 80, 32), (4, 96, 96), (1, 256, 100)],
)
def test_rope(heads: int, dim: int, rotary: int, interleaved: bool) -> None:
    positions = np.array([0, 1, 511, 1023, 7], np.int32)
    half = rotary // 2
    angles = np.arange(1024)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    x = normal((5, heads * dim), 15)
    y = in_all_ways(lambda **how: ops.rope(x, positions, heads, cos, sin, interleaved, **how))
    first = np.arange(0, rotary, 2) if interleaved else np.arange(half)
    second = first + (1 if interleaved else half)
    head = x.reshape(5, heads, dim).astype(np.float64)
    exact, bound = head.copy(), np.zeros_like(head)
    c, s = (table[positions][:, None].astype(np.float64) for table in (cos, sin))
    x0, x1 = head[..., first], head[..., second]
    exact[..., first], exact[..., second] = x0 * c - x1 * s, x0 * s + x1 * c
    bound[..., first] = bound[..., second] = 2 * U * (np.abs(x0) + np.abs(x1))
    bound[..., rotary:] = 0
    assert_within(y, exact.reshape(5, -1), bound.reshape(5, -1))
    np.testing.assert_array_equal(y.reshape(5, heads, dim)[..., rotary:], head[..., rotary:])
    np.testing.assert_array_equal(y[0], x[0])  # position 0 turns nothing


# ---- gathers ----------------------------------------------------------------------------------


def random_rows(name: str, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """Random bytes; the half-float scales in them are finite, subnormal ones included."""
    fmt = FORMATS[name]
    rng = np.random.default_rng(16)
    data = rng.integers(0, 256, (rows, columns // fmt.block_size, fmt.block_bytes), np.uint8)
    halves = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0]}
    halves |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108]}
    halves |= {"IQ4_NL": [0]}
    for at in halves.get(name, []):
        scale = rng.uniform(-1, 1, data.shape[:2]) * 10.0 ** rng.integers(-8, 2, data.shape[:2])
        data[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    if name in ("F32", "BF16"):  # finite: no exponent of all ones
        data[..., -1] &= 0xBF
    return np.ascontiguousarray(data.reshape(rows, -1))


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("name", list(FORMATS))
def test_embed_is_the_gguf_dequantiser(name: str, by_position: bool) -> None:
    columns = 3 * 256 if name.endswith("_K") else (96 if FORMATS[name].block_size > 1 else 37)
    table = random_rows(name, 50, columns)
    index = np.array([0, 49, 7, 7, 23], np.int32)
    y = in_all_ways(
        lambda **how: ops.embed(table, FORMAT_IDS[name], columns, index, by_position, **how)
    )
    kind = gguf.GGMLQuantizationType[name]
    want = gguf.dequantize(table, kind).astype(np.float32)[index]
    np.testing.assert_array_equal(y.view(np.uint32), np.ascontiguousarray(want).view(np.uint32))


def test_embed_never_reads_outside_the_table() -> None:
    table = random_rows("Q8_0", 4, 64)
    y = ops.embed(table, FORMAT_IDS["Q8_0"], 64, np.array([-1, 4, 2**31 - 1, 3], np.int32))
    assert np.isnan(y[:3]).all()
    assert np.isfinite(y[3]).all()


def test_bad_arguments_are_named() -> None:
    x = normal((2, 6))
    with pytest.raises(ValueError, match="weight does not have"):
        ops.rms_norm(x, normal((5,)), 1e-5, 1)
    with pytest.raises(ValueError, match="index is out of range"):
        ops.rows(x, np.array([2], np.int32))
    with pytest.raises(ValueError, match="position is outside"):
        ops.rope(x, np.array([0, 9], np.int32), 1, normal((4, 3)), normal((4, 3)))
    with pytest.raises(ValueError, match="a matrix has no columns"):
        ops.rows(x[:, :0], np.array([1], np.int32))
    table = random_rows("Q8_0", 4, 64)
    zero = np.zeros(1, np.int32)
    for columns in (96, 2**40):
        with pytest.raises(ValueError, match=r"fewer bytes|below 2\^31"):
            ops.embed(table, FORMAT_IDS["Q8_0"], columns, zero)
    with pytest.raises(ValueError, match="whole blocks"):
        ops.embed(table, FORMAT_IDS["Q8_0"], 33, zero)
    with pytest.raises(ValueError, match="isa="):
        ops.copy(x, isa="sse2")
