"""Pooling: one vector for a whole prompt, from the final hidden values of its tokens (embeddings).

Rows come with whatever chunk computes them, and are added one after the other in the order of
positions, in float64: chunk sizes, neighbours and preemption change no bit of the vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError

POOLINGS = ("mean", "last")


@dataclass(frozen=True)
class PoolingParams:
    """How a prompt becomes one float32 vector [E].

    pooling: "mean" of all its tokens' final hidden values, or those of the "last" one.
    normalize: to Euclidean length 1. Raises UsageError naming the field.
    """

    pooling: str = "mean"
    normalize: bool = True

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            shown = repr(self.pooling)[:80]
            raise UsageError(f'pooling = {shown} is unknown: "mean" or "last".')
        if not isinstance(self.normalize, bool):
            raise UsageError(f"normalize must be true or false, not {repr(self.normalize)[:80]}.")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PoolingParams:
        """From a mapping of field names, as JSON brings it. Raises UsageError."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise UsageError(f"Unknown pooling parameter {name!r}: {' or '.join(known)}.")
        return cls(**values)


class Pooler:
    """The vector of one request as it grows. vector: float32 [E], None until the last row is in."""

    def __init__(self, params: PoolingParams, num_tokens: int, hidden_size: int) -> None:
        self.params = params
        self.vector: npt.NDArray[np.float32] | None = None
        self._last = num_tokens - 1
        self._next = 0 if params.pooling == "mean" else self._last  # position that it needs next
        self._num_rows = 0
        self._sum = np.zeros(hidden_size, np.float64)

    def wanted(self, start: int, end: int) -> range:
        """Which of the positions start … end − 1 it still needs."""
        return range(max(start, self._next), end)

    def add(self, row: npt.NDArray[np.float32]) -> bool:
        """Takes the final hidden values [E] of the next position that it needs. False: the vector
        would be complete, but is not finite."""
        self._sum += row
        self._num_rows += 1
        self._next += 1
        if self._next <= self._last:
            return True
        vector = self._sum / self._num_rows
        if not np.isfinite(vector).all():
            return False
        if self.params.normalize:
            length = math.sqrt(math.fsum((vector * vector).tolist()))
            vector = vector / length if length > 0 else vector
        self.vector = vector.astype(np.float32)
        return True
