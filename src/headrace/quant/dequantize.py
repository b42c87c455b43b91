"""From stored number formats to float32, in numpy: the slow, obvious reading of every format.

Bit-equal to GGML's definition (scale times code, then minus or plus the minimum, each step rounded
to float32). Used by the reference interpreter, by tools and as oracle; the native core reads the
same bytes by itself. Layouts: GGML block structures, one docstring line per format below.

Notation in the layouts: d, m, dmin are float16; "low nibbles first" means byte j of a group of 32
holds number j in its low and number j+16 (or j+32) in its high four bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from headrace.quant.formats import NumberFormat
from headrace.quant.tensor import HostTensor

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Numbers unpacked at a time; bounds temporaries at some 20 MB whatever the tensor's size.
_CHUNK_NUMBERS = 1 << 20


def dequantize(tensor: HostTensor) -> Floats:
    """The whole tensor as float32 in its own shape, canonical row order. Allocates the result."""
    return dequantize_rows(tensor, slice(None)).reshape(tensor.shape)


def dequantize_rows(tensor: HostTensor, rows: slice | npt.NDArray[np.integer]) -> Floats:
    """Some rows as float32 [n, columns]: a slice, or ids in any order and number.

    Rows are canonical (`row_order` applied). Ids must be in 0 … rows−1. Memory: the result and a
    bounded temporary, never the other rows.
    """
    ids = np.arange(*rows.indices(tensor.rows)) if isinstance(rows, slice) else rows
    assert ids.ndim == 1
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < tensor.rows), "row id out of range"
    stored = ids if tensor.row_order is None else tensor.row_order[ids]
    result = np.empty((len(ids), tensor.columns), dtype=np.float32)
    chunk = max(1, _CHUNK_NUMBERS // tensor.columns)
    data = tensor.data
    for start in range(0, len(ids), chunk):
        part = data[stored[start : start + chunk]]
        result[start : start + chunk] = dequantize_bytes(part, tensor.format)
    return result


def dequantized_slices(tensor: HostTensor, max_rows: int) -> Iterator[tuple[int, Floats]]:
    """(first row, float32 [≤ max_rows, columns]) over the whole tensor, one slice at a time."""
    tensor = tensor.loaded()
    for start in range(0, tensor.rows, max_rows):
        yield start, dequantize_rows(tensor, slice(start, start + max_rows))


def dequantize_bytes(data: Bytes, number_format: NumberFormat) -> Floats:
    """Rows of stored bytes [n, row_bytes] as float32 [n, columns]."""
    rows, row_bytes = data.shape
    assert row_bytes % number_format.block_bytes == 0
    blocks = np.ascontiguousarray(data).reshape(-1, number_format.block_bytes)
    # A damaged scale may be infinite; the result is then NaN, which the caller sees.
    with np.errstate(invalid="ignore", over="ignore"):
        values = _UNPACK[number_format.name](blocks)
    columns = row_bytes // number_format.block_bytes * number_format.block_size
    return values.reshape(rows, columns)


def _half(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of every block, as float32 [n, 1]."""
    return blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes, group: int) -> Bytes:
    """Codes [n, 2·bytes]: per `group` packed bytes, all low nibbles, then all high ones."""
    grouped = packed.reshape(len(packed), -1, 1, group)
    both = np.concatenate([grouped & 0x0F, grouped >> 4], axis=2)
    return both.reshape(len(packed), -1)


def _fifth_bits(packed: Bytes) -> Bytes:
    """Bit j of a little-endian word of 32, shifted to bit 4, as uint8 [n, 32]."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _f32(blocks: Bytes) -> Floats:
    """4 bytes: the number."""
    return blocks.view(np.float32)


def _f16(blocks: Bytes) -> Floats:
    """2 bytes: the number."""
    return blocks.view(np.float16).astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    """2 bytes: the upper half of a float32."""
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: Bytes) -> Floats:
    """d, 32 int8 codes: d·q."""
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _q4_0(blocks: Bytes) -> Floats:
    """d, 16 bytes of nibbles, low first: d·(q − 8)."""
    codes = _nibbles(blocks[:, 2:], 16).astype(np.int8) - np.int8(8)
    return _half(blocks, 0) * codes.astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    """d, m, 16 bytes of nibbles, low first: d·q + m."""
    codes = _nibbles(blocks[:, 4:], 16).astype(np.float32)
    return _half(blocks, 0) * codes + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    """d, 32 fifth bits, 16 bytes of nibbles: d·(q − 16)."""
    codes = (_nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])).astype(np.int8)
    return _half(blocks, 0) * (codes - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    """d, m, 32 fifth bits, 16 bytes of nibbles: d·q + m."""
    codes = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _sub_scales(packed: Bytes) -> tuple[Floats, Floats]:
    """The 8 scales and 8 minima of 6 bits in a K block's 12 bytes, float32 [n, 8] each.

    byte 0-3: scale 0-3 in bits 0-5, bits 4-5 of scale 4-7 above
    byte 4-7: minimum 0-3 in bits 0-5, bits 4-5 of minimum 4-7 above
    byte 8-11: bits 0-3 of scale 4-7, and of minimum 4-7 above
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = [first & 63, (third & 15) | (first >> 6 << 4)]
    minima = [second & 63, (third >> 4) | (second >> 6 << 4)]
    return (
        np.concatenate(scales, axis=1).astype(np.float32),
        np.concatenate(minima, axis=1).astype(np.float32),
    )


def _scaled_k(blocks: Bytes, codes: Bytes) -> Floats:
    """(d·scale)·q − (dmin·minimum) over the 8 groups of 32; codes uint8 [n, 256]."""
    scales, minima = _sub_scales(blocks[:, 4:16])
    scale = (_half(blocks, 0) * scales)[:, :, None]
    minimum = (_half(blocks, 2) * minima)[:, :, None]
    return (scale * codes.reshape(-1, 8, 32).astype(np.float32) - minimum).reshape(-1, 256)


def _q4_k(blocks: Bytes) -> Floats:
    """d, dmin, 12 bytes of sub-scales, 4 × 32 bytes of nibbles (group 2j low, 2j+1 high)."""
    return _scaled_k(blocks, _nibbles(blocks[:, 16:], 32))


def _q5_k(blocks: Bytes) -> Floats:
    """d, dmin, 12 bytes of sub-scales, 32 bytes whose bit g is group g's fifth, nibbles as Q4_K."""
    bits: Bytes = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")
    fifth: Bytes = bits.transpose(0, 2, 1).reshape(-1, 256) << np.uint8(4)
    return _scaled_k(blocks, _nibbles(blocks[:, 48:], 32) | fifth)


def _q6_k(blocks: Bytes) -> Floats:
    """128 bytes of nibbles, 64 bytes of upper bits, 16 int8 scales, d: (d·scale)·(q − 32).

    Each half of 128 numbers has 64 bytes of nibbles (numbers 0-63 low, 64-127 high) and 32 bytes
    of upper bits (byte j: numbers j, j+32, j+64, j+96, two bits each from the lowest).
    """
    low = _nibbles(blocks[:, :128], 64)
    packed = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    high = ((packed >> shifts) & 3).reshape(-1, 256) << 4
    codes = (low | high).astype(np.int8) - np.int8(32)
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    values = scale[:, :, None] * codes.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


def _two_bits(packed: Bytes) -> Bytes:
    """Codes 0 … 3 [n, 256] of 64 bytes: each half of 128 numbers has 32 bytes, of which byte j
    holds numbers j, j+32, j+64, j+96, two bits each from the lowest."""
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 1, 4, 1)
    codes: Bytes = ((packed.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)).reshape(-1, 256)
    return codes


def _q2_k(blocks: Bytes) -> Floats:
    """16 bytes (scale low, minimum high, of 16 numbers each), 64 bytes of two-bit codes, d, dmin:
    (d·scale)·q − (dmin·minimum)."""
    scales = (blocks[:, :16] & 0x0F).astype(np.float32)
    minima = (blocks[:, :16] >> 4).astype(np.float32)
    scale = (_half(blocks, 80) * scales)[:, :, None]
    minimum = (_half(blocks, 82) * minima)[:, :, None]
    codes = _two_bits(blocks[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    return (scale * codes - minimum).reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Floats:
    """32 bytes whose bit g is the third bit of group g of 32, 64 bytes of two-bit codes, 12 bytes
    of 6-bit scales, d: (d·(scale − 32))·(q − 4).

    Scale bytes: the low 4 bits of scales i and i+8 in byte i (low, high nibble), i = 0 … 7; bits
    4, 5 of scales i, i+4, i+8, i+12 in byte 8+i, two bits each from the lowest, i = 0 … 3.
    """
    bits: Bytes = np.unpackbits(blocks[:, :32, None], axis=2, bitorder="little")
    third: Bytes = bits.transpose(0, 2, 1).reshape(-1, 256) << np.uint8(2)
    codes = (_two_bits(blocks[:, 32:96]) | third).astype(np.int8) - np.int8(4)
    low: Bytes = np.concatenate([blocks[:, 96:104] & 0x0F, blocks[:, 96:104] >> 4], axis=1)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(1, 4, 1)
    high: Bytes = (blocks[:, 104:108].reshape(-1, 1, 4) >> shifts & np.uint8(3)).reshape(-1, 16)
    scales = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    scale = _half(blocks, 108) * scales.astype(np.float32)
    values = scale[:, :, None] * codes.reshape(-1, 16, 16).astype(np.float32)
    return values.reshape(-1, 256)


#: What the 16 codes of IQ4_NL stand for: denser around zero (GGML's table).
IQ4_NL_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def _iq4_nl(blocks: Bytes) -> Floats:
    """d, 16 bytes of nibbles, low first: d·table[q]."""
    table = np.array(IQ4_NL_VALUES, dtype=np.float32)
    return _half(blocks, 0) * table[_nibbles(blocks[:, 2:], 16)]


#: Format name → blocks uint8 [n, block_bytes] → float32 [n, block_size].
_UNPACK: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
}
