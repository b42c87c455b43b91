"""What a step costs, as numbers: operations and compulsory bytes, per op and added up.

The step itself is described by Chunks: which request computes how many tokens in which context.
This file counts nothing (ops/cost.py does) and knows no machine (limits/ does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from headrace.ops.recording import Op

K = TypeVar("K", bound=Hashable)


class Unit(Enum):
    """The number format that an op multiplies in: whose peak rate limits it."""

    INT8 = "int8"
    BF16 = "bf16"  # and f16, which runs at the same rate wherever both exist
    F32 = "f32"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One request's part of a step: the positions context − num_new … context − 1.

    context: positions known after the step, as in Batch.context_lens. Raises ValueError where the
    new tokens do not fit into it.
    """

    num_new: int
    context: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_new <= self.context:
            raise ValueError(f"{self.num_new} new tokens in a context of {self.context}")

    @property
    def start(self) -> int:
        """Positions that were there before: the first new one."""
        return self.context - self.num_new

    def visible_pairs(self, window: int | None) -> int:
        """(query, position) pairs that causal attention computes: Σ min(p + 1, window)."""
        return visible_pairs(self.num_new, self.context, window)

    def visible_before(self, window: int | None) -> int:
        """Positions older than the step that at least one of its queries sees."""
        return visible_before(self.num_new, self.context, window)


def visible_pairs(num_new: int, context: int, window: int | None) -> int:
    """See Chunk.visible_pairs."""
    start = context - num_new
    if window is None or window >= context:
        return _triangle(context) - _triangle(start)
    growing = max(0, window - start)  # queries that still see every position
    return _triangle(start + growing) - _triangle(start) + (num_new - growing) * window


def visible_before(num_new: int, context: int, window: int | None) -> int:
    """See Chunk.visible_before."""
    start = context - num_new
    return start if window is None else min(start, window - 1)


def _triangle(n: int) -> int:
    return n * (n + 1) // 2


def kind_of(op: Op) -> str:
    """An op's kind as people read it: "linear", "rms_norm", "kv_write", …"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=KV)(?=[A-Z])", "_", type(op).__name__).lower()


@dataclass(frozen=True, slots=True)
class OpCost:
    """One op's work in one step.

    operations: a multiply-add counts as two. Bytes are what must cross the memory bus, by class;
    docs/limits.md says which do. format: the number format of what the op mainly touches, a matrix,
    a table or the KV cache ("Q4_K", "bf16"); None for an op on activations alone.
    """

    op: Op
    unit: Unit
    operations: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0
    activation_bytes: int = 0
    format: str | None = None

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over ops; the fields mean what they mean in OpCost."""

    num_ops: int = 0
    int8_operations: int = 0
    bf16_operations: int = 0
    f32_operations: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0
    activation_bytes: int = 0

    @property
    def operations(self) -> int:
        return self.int8_operations + self.bf16_operations + self.f32_operations

    @property
    def kv_bytes(self) -> int:
        return self.kv_read_bytes + self.kv_write_bytes

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.activation_bytes


def total(ops: Iterable[OpCost]) -> Totals:
    """The sum of some ops."""
    costs = tuple(ops)
    by_unit = {u: sum(c.operations for c in costs if c.unit is u) for u in Unit}
    return Totals(
        num_ops=len(costs),
        int8_operations=by_unit[Unit.INT8],
        bf16_operations=by_unit[Unit.BF16],
        f32_operations=by_unit[Unit.F32],
        weight_bytes=sum(c.weight_bytes for c in costs),
        kv_read_bytes=sum(c.kv_read_bytes for c in costs),
        kv_write_bytes=sum(c.kv_write_bytes for c in costs),
        activation_bytes=sum(c.activation_bytes for c in costs),
    )


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step: its ops in order of the program. chunks: what it computed, where that is known."""

    ops: tuple[OpCost, ...]
    chunks: tuple[Chunk, ...] = ()

    @property
    def total(self) -> Totals:
        return total(self.ops)

    def by_layer(self) -> dict[int | None, Totals]:
        """Model layer → sum; None: what stands outside of layers (embedding, head)."""
        return self.grouped(lambda cost: cost.op.layer)

    def by_kind(self) -> dict[str, Totals]:
        """Kind of op → sum."""
        return self.grouped(lambda cost: kind_of(cost.op))

    def grouped(self, key: Callable[[OpCost], K]) -> dict[K, Totals]:
        """Sums by a key of one's own, in the order of first appearance."""
        groups: dict[K, list[OpCost]] = {}
        for cost in self.ops:
            groups.setdefault(key(cost), []).append(cost)
        return {name: total(costs) for name, costs in groups.items()}
