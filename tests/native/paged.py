"""Paged KV memory for tests of attention: requests with shuffled blocks, poisoned where unused."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.native import _core
from headrace.ops.kv import KVFormat

F32 = npt.NDArray[np.float32]
FORMAT_IDS = {KVFormat.F32: 0, KVFormat.BF16: 1, KVFormat.F16: 2}  # step.h


def round_bf16(x: npt.ArrayLike) -> F32:
    """float32 → nearest bf16 (half to even), as float32."""
    b = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((b + 0x7FFF + ((b >> 16) & 1)) >> 16) << 16
    return rounded.astype(np.uint32).view(np.float32)


def round_kv(x: F32, fmt: KVFormat) -> F32:
    if fmt is KVFormat.BF16:
        return round_bf16(x)
    return x.astype(np.float16).astype(np.float32) if fmt is KVFormat.F16 else x


@dataclass
class Shape:
    heads: int
    kv_heads: int
    dim: int
    v_dim: int = 0
    fmt: KVFormat = KVFormat.BF16
    window: int = 0
    soft_cap: float = 0.0
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.v_dim = self.v_dim or self.dim
        self.scale = float(np.float32(self.dim**-0.5))


@dataclass
class Sequence:
    """Queries, keys and values of one request, all positions."""

    q: F32
    k: F32
    v: F32

    def __len__(self) -> int:
        return len(self.q)


def sequence(shape: Shape, length: int, seed: int) -> Sequence:
    rng = np.random.default_rng(seed)

    def normal(columns: int, scale: float) -> F32:
        return (rng.standard_normal((length, columns)) * scale).astype(np.float32)

    return Sequence(
        normal(shape.heads * shape.dim, 2.0),
        normal(shape.kv_heads * shape.dim, 1.0),
        normal(shape.kv_heads * shape.v_dim, 1.0),
    )


class Paged:
    """KV memory holding `sequences` in shuffled blocks. Every unused byte is 0xff, a NaN.

    step(spans): computes positions [first, end) of each sequence as one ragged batch (kv_write,
    then attend) and returns the outputs per sequence. Blocks that lie wholly before every later
    window are given back after a step: the table says −1 and the memory is poisoned.
    """

    LAYERS, LAYER = 2, 1

    def __init__(
        self,
        shape: Shape,
        sequences: list[Sequence],
        block_size: int = 16,
        seed: int = 0,
        extra_columns: int = 3,
    ) -> None:
        self.shape, self.sequences, self.block_size = shape, sequences, block_size
        rng = np.random.default_rng(seed)
        counts = [-(-len(s) // block_size) for s in sequences]
        self.num_blocks = sum(counts) + 5
        block_bytes = shape.kv_heads * block_size * (shape.dim + shape.v_dim)
        block_bytes *= shape.fmt.element_bytes
        self.memory = np.full(self.LAYERS * self.num_blocks * block_bytes, 0xFF, np.uint8)
        self.kv = _core.ops.KV(
            self.memory,
            FORMAT_IDS[shape.fmt],
            self.LAYERS,
            self.num_blocks,
            block_size,
            shape.kv_heads,
            shape.dim,
            shape.v_dim,
        )
        free = rng.permutation(self.num_blocks).tolist()
        self.tables = np.full((len(sequences), max(counts) + extra_columns), -1, np.int32)
        for row, count in enumerate(counts):
            self.tables[row, :count] = [free.pop() for _ in range(count)]
        self.freed = 0

    def step(
        self, spans: list[tuple[int, int]], isa: str | None = None, threads: int = 1
    ) -> list[F32]:
        shape, size = self.shape, self.block_size
        positions = np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in spans])
        borders = np.cumsum([0] + [b - a for a, b in spans]).astype(np.int32)
        q, k, v = (
            np.concatenate(
                [getattr(s, name)[a:b] for s, (a, b) in zip(self.sequences, spans, strict=True)]
            )
            for name in "qkv"
        )
        owner = np.repeat(np.arange(len(spans)), np.diff(borders))
        slots = self.tables[owner, positions // size] * size + positions % size
        _core.ops.kv_write(
            self.kv, self.LAYER, k, v, slots.astype(np.int32), isa=isa, threads=threads
        )
        out = _core.ops.attend(
            self.kv,
            self.LAYER,
            q,
            positions,
            borders,
            self.tables,
            shape.heads,
            shape.scale,
            shape.window,
            shape.soft_cap,
            isa=isa,
            threads=threads,
        )
        if shape.window:
            self.free_before([b - shape.window + 1 for _, b in spans])
        return np.split(out, borders[1:-1])

    def free_before(self, firsts: list[int]) -> None:
        """Gives back the blocks that end at or before each sequence's first needed position."""
        blocks = self.memory.reshape(self.LAYERS, self.num_blocks, -1)
        for row, first in enumerate(firsts):
            for column in range(max(first, 0) // self.block_size):
                if self.tables[row, column] >= 0:
                    blocks[:, self.tables[row, column]] = 0xFF
                    self.tables[row, column] = -1
                    self.freed += 1


def whole(shape: Shape, s: Sequence, **how: object) -> F32:
    """All positions of one sequence in one step, on contiguous numbers of blocks of 16."""
    return Paged(shape, [s]).step([(0, len(s))], **how)[0]  # type: ignore[arg-type]
