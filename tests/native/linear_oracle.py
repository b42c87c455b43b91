"""The contract's linear layer in numpy, bit by bit, and random weights in every number format.

docs/numerics.md, "Linear" and "Activation rounding", is what is written out here.

Knows nothing of the native core. Codes and scales are decoded by the `gguf` package: with a block's
scale set to 1 and its minimum to 0, the dequantised numbers are the codes.
"""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

#: In the order of the native core's Format enum.
FORMATS = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"),
    *("Q2_K", "Q3_K", "IQ4_NL"),
)
FLOATS = FORMATS[:3]
#: Where a block keeps its f16 scale, and its f16 minimum if it has one.
SCALE_AT = {"Q6_K": 208, "Q2_K": 80, "Q3_K": 108}
MINIMUM_AT = {"Q4_1": 2, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2, "Q2_K": 82}
_SMALLEST_NORMAL = 2.0**-126


def block_geometry(name: str) -> tuple[int, int]:
    """(numbers, bytes) of a block."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def random_weights(name: str, rows: int, columns: int, seed: int) -> Bytes:
    """uint8 [rows, row_bytes]: random codes (every byte value), scales of both signs, some zero."""
    rng = np.random.default_rng(seed)
    if name in FLOATS:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        if name == "F16":
            return values.astype(np.float16).view(np.uint8)
        if name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.view(np.uint8)
    numbers, size = block_geometry(name)
    blocks = rng.integers(0, 256, (rows, columns // numbers, size), dtype=np.uint8)
    for at in (SCALE_AT.get(name, 0), MINIMUM_AT.get(name)):
        if at is not None:
            halves = rng.uniform(-0.02, 0.02, blocks.shape[:2]).astype(np.float16)
            halves[rng.random(halves.shape) < 0.05] = 0
            blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def dequantised(name: str, data: Bytes) -> F32:
    """float32 [rows, columns], by the gguf package."""
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    return np.ascontiguousarray(values, dtype=np.float32).reshape(len(data), -1)


# ---- exact arithmetic ---------------------------------------------------------------------------


def _flush(x: F32) -> F32:
    """Denormals to zero, as kernel threads do."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.float32(0), x)


def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: F32) -> F32:
    """float32(a·b + c) with one rounding. a, b, c: float32.

    a·b is exact in float64. The sum is rounded to odd there (its error is known exactly, by
    Knuth's two-sum), after which rounding to float32 is correct (Boldo & Melquiond, 2008).
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    with np.errstate(invalid="ignore"):
        total = product + addend
        shadow = total - product
        error = (product - (total - shadow)) + (addend - shadow)
        even = (total.view(np.int64) & 1) == 0
        inexact = np.isfinite(total) & (error != 0) & even
        towards = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        return _flush(np.where(inexact, towards, total).astype(np.float32))


def round_bf16(x: F32) -> F32:
    """Round half to even, kept as float32. Finite x only."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


@dataclass(frozen=True)
class Int8Activations:
    """codes: int64 [T, blocks, 32]; scale (da) and sum (sa): float32 [T, blocks]."""

    codes: npt.NDArray[np.int64]
    scale: F32
    sum: F32


def quantise_activations(x: F32) -> Int8Activations:
    """x: float32 [T, K], K a multiple of 32."""
    blocks: F32 = x.reshape(len(x), -1, 32)
    finite = np.isfinite(blocks).all(-1)
    amax = np.where(finite, np.abs(blocks).max(-1), np.float32(0))
    usable = amax >= 2.0**-120
    safe: F32 = np.where(usable, amax, np.float32(1)).astype(np.float32)
    inv = (np.float32(127) / safe).astype(np.float32)
    clean = np.where(usable[..., None], blocks, np.float32(0)).astype(np.float32)
    scaled = _flush((_flush(clean) * inv[..., None]).astype(np.float32))
    codes = np.clip(np.rint(scaled), -127, 127).astype(np.int64)
    scale = np.where(usable, _flush(safe / np.float32(127)), np.float32(0)).astype(np.float32)
    total = _flush((scale * codes.sum(-1)).astype(np.float32))
    bad = np.where(finite, np.float32(0), np.float32(np.nan))
    return Int8Activations(codes, scale + bad, total + bad)


@dataclass(frozen=True)
class BlockWeights:
    """codes: int64 [N, blocks, 32], offset removed, the scales of 16 (Q2_K, Q3_K, Q6_K) multiplied
    in. scale (dw), minimum (m, or None): float32 [N, blocks]. minima: Q2_K's minima of 16, int64
    [N, blocks, 2]; then minimum is what multiplies them."""

    codes: npt.NDArray[np.int64]
    scale: F32
    minimum: F32 | None
    minima: npt.NDArray[np.int64] | None = None


def decode_weights(name: str, data: Bytes) -> BlockWeights:
    """Codes and scales of a quantised format, from the gguf package's dequantiser."""
    numbers, size = block_geometry(name)
    blocks = data.reshape(len(data), -1, size).copy()
    scale_at, minimum_at = SCALE_AT.get(name, 0), MINIMUM_AT.get(name)

    def half(at: int) -> F32:
        values = blocks[..., at : at + 2].copy().view(np.float16).astype(np.float32)[..., 0]
        return np.repeat(values, numbers // 32, axis=1)

    scale = half(scale_at)
    minimum = None if minimum_at is None else half(minimum_at)
    blocks[..., scale_at : scale_at + 2] = np.float16(1).reshape(1).view(np.uint8)
    if minimum_at is not None:
        blocks[..., minimum_at : minimum_at + 2] = 0
    codes = dequantised(name, blocks.reshape(len(data), -1)).reshape(len(data), -1, 32)
    if name in ("Q4_K", "Q5_K"):
        fine, fine_minimum = gguf.quants.Q4_K.get_scale_min(blocks[..., 4:16].reshape(-1, 12))
        fine = fine.reshape(scale.shape).astype(np.float32)
        codes = codes / np.maximum(fine, 1)[..., None]  # a zero scale makes the codes irrelevant
        assert minimum is not None
        minimum = -(minimum * fine_minimum.reshape(scale.shape).astype(np.float32))
        scale = scale * fine
    assert (codes == np.rint(codes)).all()
    if name == "Q2_K":  # with scale 0 and minimum 1, every number is minus its minimum
        assert minimum is not None
        blocks[..., scale_at : minimum_at + 2] = np.array([0, 1], np.float16).view(np.uint8)
        numbers_minus = dequantised(name, blocks.reshape(len(data), -1))
        minima = -numbers_minus.reshape(len(data), -1, 2, 16)[..., 0].astype(np.int64)
        return BlockWeights(codes.astype(np.int64), scale, -minimum, minima)
    return BlockWeights(codes.astype(np.int64), scale, minimum)


# ---- the linear layer ---------------------------------------------------------------------------


def linear(name: str, data: Bytes, x: F32, bias: F32 | None = None) -> F32:
    """y = x Wᵀ (+ bias), in the contract's arithmetic. x: float32 [T, K] → float32 [T, N]."""
    y = _linear_float(name, data, x) if name in FLOATS else _linear_int8(name, data, x)
    return y if bias is None else y + bias


def _linear_int8(name: str, data: Bytes, x: F32) -> F32:
    a, w = quantise_activations(x), decode_weights(name, data)
    acc = np.zeros((len(x), len(data)), np.float32)
    for b in range(a.scale.shape[1]):
        dot = (a.codes[:, b] @ w.codes[:, b].T).astype(np.float32)
        acc = fma(dot, _flush(w.scale[None, :, b] * a.scale[:, b, None]), acc)
        if w.minima is not None:
            assert w.minimum is not None
            sums = a.codes[:, b].reshape(-1, 2, 16).sum(-1)
            less = (sums @ w.minima[:, b].T).astype(np.float32)
            acc = fma(less, _flush(w.minimum[None, :, b] * a.scale[:, b, None]), acc)
        elif w.minimum is not None:
            acc = fma(w.minimum[None, :, b], a.sum[:, b, None], acc)
    return acc


def _linear_float(name: str, data: Bytes, x: F32) -> F32:
    weights = _flush(dequantised(name, data))
    activations = round_bf16(x) if name == "BF16" else x
    pad = -x.shape[1] % 32
    w, a = (np.pad(_flush(m), ((0, 0), (0, pad))) for m in (weights, activations))
    # bf16 pairs go odd element first.
    order = [k ^ 1 for k in range(32)] if name == "BF16" else list(range(32))
    acc = np.zeros((len(x), len(data)), np.float32)
    for block in range(0, w.shape[1], 32):
        part = np.zeros_like(acc)
        for k in order:
            part = fma(w[None, :, block + k], a[:, None, block + k], part)
        acc = _flush(acc + part)
    return acc
