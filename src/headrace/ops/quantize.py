"""Quantising a weight at load: the native quantisers behind a HostTensor.

Legacy formats get the bits of GGML's own quantisers; K-quants the scales with the smallest squared
error (native/src/kernels/quantize.cpp). Nothing runs until the tensor's bytes are asked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.errors import ModelFileError
from headrace.native import core
from headrace.ops.packed import NATIVE_FORMATS
from headrace.quant.formats import FORMATS, NumberFormat
from headrace.quant.tensor import HostTensor, PendingTensor

#: Formats that a quantiser exists for, the largest first.
QUANTISERS: tuple[NumberFormat, ...] = tuple(
    FORMATS[name]
    for name in ("Q8_0", "Q6_K", "Q5_1", "Q5_0", "Q5_K", "Q4_1", "Q4_0", "Q4_K", "Q3_K", "Q2_K")
)


def quantized(tensor: HostTensor, target: NumberFormat, label: str, threads: int) -> HostTensor:
    """`tensor` in `target` (one of QUANTISERS; columns in whole blocks), pending.

    label: what to call it in errors. Reading its bytes raises ModelFileError where a value is not
    finite, and allocates them: nothing else of the tensor is held.
    """

    def make() -> npt.NDArray[np.uint8]:
        numbers = NATIVE_FORMATS[tensor.format.name], NATIVE_FORMATS[target.name]
        stored = tensor.data.reshape(-1, tensor.format.row_bytes(tensor.columns))
        try:
            result: npt.NDArray[np.uint8] = core().quantize(
                numbers[0], stored, tensor.columns, numbers[1], threads=threads
            )
        except ValueError as error:
            raise ModelFileError(f"{label} cannot be stored as {target.name}: {error}.") from None
        return result

    return PendingTensor(tensor, target, make)
