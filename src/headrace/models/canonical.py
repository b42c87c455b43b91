"""One file tensor → one canonical weight (models/weights.py says what canonical is).

Matrices stay the file's bytes; only a row order is attached or, for Hugging Face GPT-2, a float
matrix transposed. Vectors (norms, biases) become float32, which every float format embeds exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.errors import ModelFileError
from headrace.models.weights import Transform, WeightSpec
from headrace.quant.formats import BF16, F16, F32
from headrace.quant.tensor import HostTensor

FloatArray = npt.NDArray[np.float32]


def canonical(tensor: HostTensor, spec: WeightSpec, transform: Transform, label: str) -> HostTensor:
    """Checks shape and format, applies `transform`. label: file and tensor, for messages."""
    stored = spec.shape[::-1] if transform is Transform.TRANSPOSE else spec.shape
    if tensor.shape != stored:
        raise ModelFileError(
            f"{label} has shape {_by(tensor.shape)}, but the model's sizes ask for {_by(stored)}."
        )
    if transform is Transform.TRANSPOSE:
        return _transposed(tensor, label)
    if len(spec.shape) > 1:
        if transform is Transform.UNPERMUTE_ROPE:
            order = half_from_interleaved(spec.heads, spec.shape[0])
            return HostTensor(tensor.format, tensor.shape, tensor.data, order)
        return tensor
    values = vector(tensor, label)
    if transform is Transform.UNPERMUTE_ROPE:
        values = values[half_from_interleaved(spec.heads, spec.shape[0])]
    if transform is Transform.PLUS_ONE:
        values = values + np.float32(1)
    return HostTensor(F32, spec.shape, values.view(np.uint8).reshape(1, -1))


def half_from_interleaved(heads: int, rows: int) -> npt.NDArray[np.int32]:
    """row_order that undoes llama.cpp's reordering of query and key rows.

    Inside a head of D rows the file has the pair (j, j + D/2) at rows (2j, 2j + 1):
    canonical row h·D + s·D/2 + j (s = 0, 1) is stored at h·D + 2j + s.
    """
    half = rows // heads // 2
    stored = np.arange(rows, dtype=np.int32).reshape(heads, half, 2)
    return np.ascontiguousarray(stored.swapaxes(1, 2)).reshape(rows)


def vector(tensor: HostTensor, label: str) -> FloatArray:
    """The numbers of a float tensor with one axis, float32 [N]."""
    raw = np.ascontiguousarray(tensor.data).reshape(-1)
    if tensor.format == F32:
        return raw.view("<f4").astype(np.float32)
    if tensor.format == F16:
        return raw.view("<f2").astype(np.float32)
    if tensor.format == BF16:
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    raise ModelFileError(
        f"{label} is stored as {tensor.format.name}; vectors must be F32, F16 or BF16."
    )


def _transposed(tensor: HostTensor, label: str) -> HostTensor:
    if tensor.format.block_size != 1:
        raise ModelFileError(f"{label} is stored as {tensor.format.name} and cannot be transposed.")
    rows, columns, size = *tensor.shape, tensor.format.block_bytes
    flipped = tensor.data.reshape(rows, columns, size).swapaxes(0, 1)
    data = np.ascontiguousarray(flipped).reshape(columns, rows * size)
    return HostTensor(tensor.format, (columns, rows), data)


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "()"
