"""A weight: by shape and number format alone, or as it lies in host memory, without a copy, or
with its bytes yet to be made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.quant.formats import NumberFormat


class TensorInfo(Protocol):
    """What is known of a weight before its bytes are: a TensorSpec or a HostTensor."""

    @property
    def format(self) -> NumberFormat: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def num_bytes(self) -> int:
        """Bytes as stored, scales included."""
        ...


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A weight without its numbers: enough to record a program and to count its cost."""

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
        return self.rows * self.format.row_bytes(self.columns)


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
