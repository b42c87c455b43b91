"""KV groups: sets of layers whose cache entries have the same lifetime rule.

A group is what the block manager allocates for and what the interpreter gives memory to. This file
holds the description only; block ids live in `engine/`, tensor memory in the interpreters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class KVElement(Protocol):
    """How a number of the cache is stored, as far as sizes go. value: the format's name."""

    @property
    def value(self) -> str: ...
    @property
    def element_bytes(self) -> int: ...


class KVFormat(Enum):
    """Number formats of stored keys and values. Value = bytes per element."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"

    @property
    def element_bytes(self) -> int:
        return 4 if self is KVFormat.F32 else 2


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """One group. window None = full (every position lives as long as its request); an integer w =
    a query at p sees p−w+1 … p, older positions may be freed. layers: model layer indices, in the
    order of the group's own `layer` argument."""

    name: str
    layers: tuple[int, ...]
    kv_heads: int
    k_dim: int
    v_dim: int
    window: int | None = None

    def bytes_per_position(self, fmt: KVElement) -> int:
        """Bytes of one position over all layers of the group: L·K·(Dk + Dv)·bytes."""
        return len(self.layers) * self.kv_heads * (self.k_dim + self.v_dim) * fmt.element_bytes
