"""From float32 to number formats, in numpy: F32, F16, BF16 and GGML's legacy quantisers.

Round-to-nearest per block of 32, no search: the bits of GGML's own reference quantisers. K-quants
need a search over scales and are not here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.quant.formats import NumberFormat
from headrace.quant.tensor import HostTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def quantize(values: Floats, number_format: NumberFormat) -> HostTensor:
    """A tensor of the same shape in `number_format`; allocates its bytes.

    values: float32, any shape, finite for the block formats; the last axis a multiple of the
    format's block. A block whose scale exceeds float16 (65504) gets an infinite scale, as in GGML.
    Raises ValueError for a format without a quantiser, a bad last axis, or non-finite values.
    """
    pack = _PACK.get(number_format.name)
    if pack is None:
        raise ValueError(f"{number_format.name} has no quantiser; choose from {', '.join(_PACK)}.")
    if values.ndim == 0 or values.shape[-1] % number_format.block_size:
        raise ValueError(
            f"shape {values.shape} does not divide into {number_format.name} blocks of "
            f"{number_format.block_size}."
        )
    if number_format.block_size > 1 and not np.isfinite(values).all():
        raise ValueError(f"values that are not finite cannot be stored as {number_format.name}.")
    blocks = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, number_format.block_size)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        data = pack(blocks)
    row_bytes = number_format.row_bytes(values.shape[-1])
    return HostTensor(number_format, values.shape, data.reshape(-1, row_bytes))


def _inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 where there is no usable inverse (a block of zeros or of denormals)."""
    inverse = np.float32(1) / scale
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _half_bytes(scale: Floats) -> Bytes:
    """float32 [n, 1] as float16 bytes [n, 2]."""
    return scale.astype(np.float16).view(np.uint8)


def _pack_nibbles(codes: Bytes) -> Bytes:
    """Codes [n, 32] below 16 → bytes [n, 16]: number j low, number j+16 high."""
    return (codes[:, :16] & np.uint8(0x0F)) | (codes[:, 16:] << np.uint8(4))


def _fifth_bits(codes: Bytes) -> Bytes:
    """Bit 4 of 32 codes as a little-endian word, bytes [n, 4]."""
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _symmetric_codes(blocks: Floats, half_range: int) -> tuple[Floats, Bytes]:
    """Scale [n, 1] that maps the largest magnitude to code 0, and codes 0 … 2·half_range − 1."""
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1, keepdims=True), axis=1)
    scale = largest / np.float32(-half_range)
    codes = np.trunc(blocks * _inverse(scale) + np.float32(half_range + 0.5))
    return scale, codes.astype(np.uint8).clip(0, 2 * half_range - 1)


def _affine_codes(blocks: Floats, max_code: int) -> tuple[Floats, Floats, Bytes]:
    """Scale and minimum [n, 1] that map the block's range to codes 0 … max_code, and the codes."""
    minimum = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - minimum) / np.float32(max_code)
    codes = np.trunc((blocks - minimum) * _inverse(scale) + np.float32(0.5))
    return scale, minimum, codes.astype(np.uint8).clip(0, max_code)


def _f32(blocks: Floats) -> Bytes:
    return blocks.copy().view(np.uint8)


def _f16(blocks: Floats) -> Bytes:
    return blocks.astype(np.float16).view(np.uint8)


def _bf16(blocks: Floats) -> Bytes:
    """Round half to even; NaN stays NaN (made quiet)."""
    bits = blocks.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, (bits >> 16) | 0x40, rounded).astype(np.uint16).view(np.uint8)


def _q8_0(blocks: Floats) -> Bytes:
    """Codes round half away from zero, unlike our activations (half to even)."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    magnitude = np.abs(scaled)
    whole = np.floor(magnitude)
    rounded = np.sign(scaled) * (whole + np.floor(2 * (magnitude - whole)))
    return np.concatenate([_half_bytes(scale), rounded.astype(np.int8).view(np.uint8)], axis=1)


def _q4_0(blocks: Floats) -> Bytes:
    scale, codes = _symmetric_codes(blocks, 8)
    return np.concatenate([_half_bytes(scale), _pack_nibbles(codes)], axis=1)


def _q4_1(blocks: Floats) -> Bytes:
    scale, minimum, codes = _affine_codes(blocks, 15)
    return np.concatenate([_half_bytes(scale), _half_bytes(minimum), _pack_nibbles(codes)], axis=1)


def _q5_0(blocks: Floats) -> Bytes:
    scale, codes = _symmetric_codes(blocks, 16)
    return np.concatenate([_half_bytes(scale), _fifth_bits(codes), _pack_nibbles(codes)], axis=1)


def _q5_1(blocks: Floats) -> Bytes:
    scale, minimum, codes = _affine_codes(blocks, 31)
    parts = [_half_bytes(scale), _half_bytes(minimum), _fifth_bits(codes), _pack_nibbles(codes)]
    return np.concatenate(parts, axis=1)


#: Format name → blocks float32 [n, block_size] → bytes [n, block_bytes].
_PACK: dict[str, Callable[[Floats], Bytes]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
}
