"""How much memory a KV cache really takes: pools of a given shape, every position written."""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass

import numpy as np

from headrace.engine.config import Machine
from headrace.engine.sizing import ceil_div
from headrace.lab.parts.memory import FreshProcesses, anonymous_bytes
from headrace.lab.parts.random_model import random_model
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel

BLOCK = 16
_PAGE = 4096
#: A shape is left out when it would take more than this share of the free memory.
_MEMORY_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class KVShape:
    """L layers, K KV heads, D head dim, S positions of one sequence, number format."""

    layers: int
    kv_heads: int
    head_dim: int
    positions: int
    format: KVFormat = KVFormat.BF16

    @property
    def formula_bytes(self) -> int:
        """2 · L · K · D · S · bytes of a number."""
        numbers = 2 * self.layers * self.kv_heads * self.head_dim * self.positions
        return numbers * self.format.element_bytes

    @property
    def allocated_bytes(self) -> int:
        """What a pool for it takes: whole blocks, each an odd number of pages long (so that equal
        parts of blocks do not meet in a few sets of every cache: native/src/program.cpp)."""
        block = BLOCK * self.formula_bytes // self.positions
        pages = ceil_div(block, _PAGE) | 1
        return pages * _PAGE * ceil_div(self.positions, BLOCK)

    def __str__(self) -> str:
        return f"L {self.layers}, K {self.kv_heads}, D {self.head_dim}, S {self.positions}"


def variations(base: KVShape) -> dict[str, list[KVShape]]:
    """One dimension at a time, from a model's own shape: what varies → the shapes."""

    def shapes(**changes: list[int]) -> list[KVShape]:
        [(name, values)] = changes.items()
        fields = {
            "layers": base.layers,
            "kv_heads": base.kv_heads,
            "head_dim": base.head_dim,
            "positions": base.positions,
        }
        return [KVShape(**(fields | {name: v}), format=base.format) for v in values]

    return {
        "layers": shapes(layers=[base.layers // 2 or 1, base.layers, 2 * base.layers]),
        "KV heads": shapes(kv_heads=[1, base.kv_heads, 3 * base.kv_heads, 9 * base.kv_heads]),
        "context": shapes(positions=[500, 1000, 2000, 4000, 8000]),
    }


#: Check values that can be told by heart: 2 GiB with 32 KV heads, 512 MiB with 8.
CHECK_VALUES = (
    KVShape(32, 32, 128, 4096, KVFormat.F16),
    KVShape(32, 8, 128, 4096, KVFormat.F16),
)


def measured_bytes(fresh: FreshProcesses, shape: KVShape) -> int | None:
    """Anonymous memory of the written cache; None where there is not room enough for it."""
    free = Machine.probe(os.environ).free_bytes
    if free is not None and shape.allocated_bytes > _MEMORY_SHARE * free:
        return None
    return fresh.call(write_cache, shape)


def write_cache(shape: KVShape) -> int:
    """Allocates as an engine does, writes every position, and tells how much anonymous memory that
    took. In a fresh process."""
    _written(KVShape(1, 1, 16, BLOCK))  # what happens for the first time only
    return _written(shape)


def _written(shape: KVShape) -> int:
    program = random_model(
        num_layers=shape.layers,
        num_heads=shape.kv_heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
    )
    model = NativeModel(program, max_tokens=16, max_requests=1, num_threads=1)
    num_blocks = ceil_div(shape.positions, BLOCK)
    data = np.ones(BLOCK * shape.formula_bytes // shape.positions, np.uint8)
    gc.collect()  # nothing of what came before may be given back meanwhile
    before = anonymous_bytes()
    model.allocate_kv([num_blocks], BLOCK, shape.format)
    for number in range(num_blocks):
        model.write_block(0, number, data)
    return anonymous_bytes() - before
