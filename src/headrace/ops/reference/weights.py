"""Stored weights as torch tensors, when an op asks for them.

A quantised model of 1.5 billion weights is 1 GB as stored, 12 GB in float64. So a matrix is
dequantised when it is used, a slice of rows at a time, and kept only while `cache_bytes` lasts
(first come, first kept: every step visits all weights in the same order, so evicting the least
recently used would evict exactly what comes next).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from headrace.quant.dequantize import dequantize, dequantize_rows, dequantized_slices
from headrace.quant.tensor import HostTensor

DEFAULT_CACHE_BYTES = 4 << 30
#: Bytes of one slice of a matrix that is not kept.
_SLICE_BYTES = 64 << 20


class WeightStore:
    """Weights of one model in one float type. Mutates only its own cache.

    overrides: tensors that replace stored weights (trainable parameters, changed weights); used as
    they are, with their gradient.
    """

    def __init__(
        self,
        stored: Mapping[str, HostTensor],
        dtype: torch.dtype,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        overrides: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.dtype = dtype
        self._stored = stored
        self._free_bytes = cache_bytes
        self._tensors: dict[str, Tensor] = dict(overrides or {})

    def vector(self, name: str) -> Tensor:
        """A norm weight or bias, [N]."""
        return self._kept(name).reshape(-1)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Some rows of a table, [len(ids), C]; the others are never dequantised."""
        if name in self._tensors:
            return self._tensors[name][ids]
        return torch.from_numpy(dequantize_rows(self._stored[name], ids.numpy())).to(self.dtype)

    def slices(self, name: str) -> Iterator[Tensor]:
        """The matrix as consecutive slices of rows, [≤ n, K] each; one slice if it is kept."""
        if name in self._tensors or self._bytes(name) <= self._free_bytes:
            yield self._kept(name)
            return
        stored = self._stored[name]
        max_rows = max(1, _SLICE_BYTES // (stored.columns * self.dtype.itemsize))
        for _, values in dequantized_slices(stored, max_rows):
            yield torch.from_numpy(values).to(self.dtype)

    def _kept(self, name: str) -> Tensor:
        if name not in self._tensors:
            self._free_bytes -= self._bytes(name)
            self._tensors[name] = torch.from_numpy(dequantize(self._stored[name])).to(self.dtype)
        return self._tensors[name]

    def _bytes(self, name: str) -> int:
        stored = self._stored[name]
        return stored.rows * stored.columns * self.dtype.itemsize
