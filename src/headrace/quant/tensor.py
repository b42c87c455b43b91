"""A weight: by shape and number format alone, or as it lies in host memory, without a copy, or
with its bytes yet to be made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.quant.formats import NumberFormat


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A weight by shape and number format: enough to record a program and to count its cost.

    shape: all axes; all but the last are folded into `rows` (a vector has rows = 1)."""

    format: NumberFormat
    shape: tuple[int, ...]

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


@dataclass(frozen=True, slots=True)
class HostTensor(TensorSpec):
    """A matrix [rows, columns] in one number format, with its bytes.

    data: uint8 [rows, row_bytes], C-contiguous, usually a view of a memory-mapped file; it is never
    written. row_order: int32 [rows] or None; canonical row i is stored row row_order[i] (GGUF's
    permuted Q/K rows are undone this way, so that no quantised byte is touched).
    """

    data: npt.NDArray[np.uint8]
    row_order: npt.NDArray[np.int32] | None = None

    def loaded(self) -> HostTensor:
        """The tensor with its bytes in memory: itself. Ask once for several readings."""
        return self


class PendingTensor(HostTensor):
    """A HostTensor whose bytes `make` computes at every reading of `data`, and that keeps none: a
    model quantised at load then holds one such matrix at a time, while it is packed. source: what
    they are computed from."""

    __slots__ = ("_make", "source")
    source: HostTensor
    _make: Callable[[], npt.NDArray[np.uint8]]

    def __init__(
        self,
        source: HostTensor,
        number_format: NumberFormat,
        make: Callable[[], npt.NDArray[np.uint8]],
    ) -> None:
        """make: the uint8 [rows, row_bytes] of `number_format`, the source's rows in its order; the
        same at every call."""
        for name, value in (
            ("format", number_format),
            ("shape", source.shape),
            ("row_order", source.row_order),
            ("source", source),
            ("_make", make),
        ):
            object.__setattr__(self, name, value)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self._make()

    def loaded(self) -> HostTensor:
        return HostTensor(self.format, self.shape, self.data, self.row_order)
