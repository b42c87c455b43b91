"""HostTensor: a weight as it lies in host memory, in any number format, without a copy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.quant.formats import NumberFormat


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A matrix [rows, columns] (a vector has rows = 1) in one number format. With more than two
    axes, all but the last are folded into rows.

    data: uint8 [rows, row_bytes], C-contiguous, usually a view of a memory-mapped file; it is never
    written. row_order: int32 [rows] or None; canonical row i is stored row row_order[i] (GGUF's
    permuted Q/K rows are undone this way, so that no quantised byte is touched).
    """

    format: NumberFormat
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    row_order: npt.NDArray[np.int32] | None = None

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes as stored, scales included."""
        return self.rows * self.format.row_bytes(self.columns)
