"""Tiles of a row-wise record: how many rows and columns its parts pass on at a time, and where in a
worker's scratch lies what never leaves the record.

    scratch   | local value 0: tile_rows rows | local value 1: … | spare rows |

A spare row takes the place of a stored one on workers that compute a copy (OneToken.COPIES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.ops.recording import OneToken, RowWise, Value

#: Local memory of a tile, in floats: half of a first-level cache of 32 KiB.
TILE_FLOATS = 4096
MAX_TILE_ROWS = 16
#: Columns that element-wise parts pass on at a time.
TILE_COLUMNS = 512


@dataclass(frozen=True, slots=True)
class Tile:
    """rows, columns (0 = whole rows) of a tile. local: storage → (float of the scratch, stride) of
    what has no memory of its own; spare: the same of what has, but needs a place on workers that
    must not write it. floats: of the scratch."""

    rows: int
    columns: int
    local: Mapping[int, tuple[int, int]]
    spare: Mapping[int, tuple[int, int]]
    floats: int


def tile_of(op: RowWise) -> Tile:
    """The tile of a record; a pure function of it."""
    columns = TILE_COLUMNS if op.by_blocks else 0
    stored = {v.storage for v in op.out if isinstance(v, Value)}
    strides: dict[int, int] = {}
    for part in op.parts:
        for v in part.outputs:
            if isinstance(v, Value):
                width = min(v.offset + v.columns, columns or v.offset + v.columns)
                strides[v.storage] = max(strides.get(v.storage, 0), -(-width // 16) * 16)
    per_row = sum(stride for storage, stride in strides.items() if storage not in stored)
    rows = 1 if op.by_blocks else max(1, min(MAX_TILE_ROWS, TILE_FLOATS // max(per_row, 1)))
    local, spare, floats = {}, {}, 0
    for storage, stride in strides.items():
        if storage not in stored:
            local[storage] = floats, stride
            floats += rows * stride
        elif op.one_token is OneToken.COPIES:
            spare[storage] = floats, stride
            floats += stride
    return Tile(rows, columns, local, spare, floats)
