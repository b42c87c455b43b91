"""Weights as the native core wants them: matrices repacked once, vectors as float32, tables raw.

A matrix that linears use is repacked into the kernels' panels (a copy of the file's size). A table
that is only gathered from is never copied: its rows are read from the mapped file. A tied output
matrix is both. This file is where the native path says no to a weight, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import ModelFileError
from headrace.native import core
from headrace.ops.recording import (
    ActivationKind,
    Embed,
    LayerNorm,
    Linear,
    Matmul,
    Op,
    Recording,
    RmsNorm,
)
from headrace.quant.dequantize import dequantize
from headrace.quant.tensor import HostTensor, TensorSpec

if TYPE_CHECKING:
    from headrace.native import _core

#: Number format → the core's Format (step.h).
NATIVE_FORMATS: Mapping[str, int] = {
    name: i
    for i, name in enumerate(
        (
            *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"),
            *("Q2_K", "Q3_K", "IQ4_NL"),
        )
    )
}


def activation_kind(tensor: TensorSpec) -> ActivationKind:
    """The form in which a matmul by this weight reads its activations (docs/numerics.md)."""
    by_format = {"F32": ActivationKind.F32, "F16": ActivationKind.F32, "BF16": ActivationKind.BF16}
    return by_format.get(tensor.format.name, ActivationKind.INT8)


def decline(op: Op, weights: Mapping[str, HostTensor]) -> str | None:
    """Why the native path cannot run an op; None if it can."""
    match op:
        case Embed(weight=name):
            tensor = weights[name]
            if tensor.format.name not in NATIVE_FORMATS:
                return f"embed reads no {tensor.format.name} table ({name})"
            if tensor.row_order is not None:
                return f"embed reads no table in another row order ({name})"
        case Linear(weight=name) | Matmul(weight=name):
            tensor = weights[name]
            if tensor.format.name not in NATIVE_FORMATS:
                return f"linear has no kernel for {tensor.format.name} ({name})"
            if tensor.columns % tensor.format.block_size != 0:
                return f"linear: {tensor.columns} columns do not fill blocks ({name})"
    return None


#: Matrices of linear layers and a number of threads → the same packed.
Packer = Callable[[Mapping[str, HostTensor], int], "dict[str, _core.PackedMatrix]"]


class PackedWeights:
    """What one recording needs of a model's weights. Immutable; shared by programs.

    Holds the weights' mapping, so the file stays mapped as long as this object lives.
    """

    def __init__(
        self,
        recording: Recording,
        weights: Mapping[str, HostTensor],
        *,
        threads: int = 1,
        pack: Packer | None = None,
    ) -> None:
        """Packs, or has it done by `pack` (a cache). Raises ModelFileError naming what the native
        path cannot run."""
        self._weights = weights
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}
        linear: dict[str, HostTensor] = {}
        for op in recording.ops():
            reason = decline(op, weights)
            if reason is not None:
                raise ModelFileError(f"the native path cannot run this model: {reason}.")
            match op:
                case Linear(weight=name, bias=bias):
                    linear[name] = weights[name]
                    if bias is not None:
                        self._add_vector(bias)
                case RmsNorm(weight=name):
                    self._add_vector(name)
                case LayerNorm(weight=name, bias=bias):
                    self._add_vector(name)
                    self._add_vector(bias)
        self._matrices = (pack or pack_all)(linear, threads)

    def matrix(self, name: str) -> _core.PackedMatrix:
        return self._matrices[name]

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self._vectors[name]

    def table(self, name: str) -> HostTensor:
        return self._weights[name]

    @property
    def num_bytes(self) -> int:
        """Anonymous memory of packed matrices and vectors; what a cache maps takes none."""
        matrices = sum(int(m.nbytes) for m in self._matrices.values() if not m.mapped)
        return matrices + sum(v.nbytes for v in self._vectors.values())

    def _add_vector(self, name: str) -> None:
        if name not in self._vectors:
            self._vectors[name] = np.ascontiguousarray(dequantize(self._weights[name]))


def pack_all(weights: Mapping[str, HostTensor], threads: int) -> dict[str, _core.PackedMatrix]:
    """Repacks every matrix, one after the other, each on all threads."""
    return {name: _pack(tensor, threads) for name, tensor in weights.items()}


def _pack(tensor: HostTensor, threads: int) -> _core.PackedMatrix:
    packed: _core.PackedMatrix = core().pack(
        NATIVE_FORMATS[tensor.format.name],
        tensor.data,
        tensor.rows,
        tensor.columns,
        row_order=tensor.row_order,
        threads=threads,
    )
    return packed
