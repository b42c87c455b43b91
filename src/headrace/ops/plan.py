"""Memory plan of a fused program: which buffer each value lies in, and where workers must meet.

Three rules, applied in order:
1. An element-wise op writes over its first input where nobody reads that input afterwards.
2. Buffers are reused once the last reader of what they held is done (liveness), by values whose
   rows lie alike, so that rule 3 can go row by row. Outputs stay.
3. Barriers stand where workers hand memory to each other (barriers.py).

What a row-wise record keeps to itself lies in its workers' scratch and is not planned here
(tiles.py). With keep=True rules 1 and 2 are off: every value has its own buffer and can be read
after a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.ops.barriers import Meet, Place, meetings
from headrace.ops.contract import Rows
from headrace.ops.recording import (
    Add,
    Gated,
    OneToken,
    Op,
    Prepared,
    Recording,
    Rope,
    RowWise,
    Unary,
    Value,
)

Bytes = Callable[[Value | Prepared], int]


@dataclass(frozen=True, slots=True)
class Plan:
    """buffers: bytes of each. places: value id → memory. barriers[s][i]: in which steps workers
    meet before op i of segment s. copied: ids of prepared values of which, in a step of one token,
    every worker has a copy."""

    buffers: tuple[int, ...]
    places: dict[int, Place]
    barriers: tuple[tuple[Meet, ...], ...]
    copied: frozenset[int]


def plan(recording: Recording, size: Bytes, *, keep: bool = False) -> Plan:
    """size: bytes of the largest step's memory of a value that has its own."""
    ops = tuple(recording.ops())
    pinned = {v.storage for outputs in recording.outputs for v in outputs.values()}
    owners = _owners(ops)
    homes = {} if keep else _in_place(ops, pinned)
    buffers, assigned = _assign(ops, owners, homes, pinned, size, keep=keep)
    places = {}
    for value in _values(ops, recording):
        if isinstance(value, Prepared):
            places[value.id] = Place(assigned[value.id], 0, 0)
        else:
            root, offset = _home(homes, value.storage)
            owner = owners[root]
            assert isinstance(owner, Value)
            stride = row_stride(owner, output=root in pinned)
            places[value.id] = Place(assigned[root], offset + value.offset, stride)
    copied = frozenset(
        v.id
        for op in ops
        if isinstance(op, RowWise) and op.one_token is OneToken.COPIES
        for v in op.out
        if isinstance(v, Prepared)
    )
    barriers = tuple(meetings(segment, places, copied) for segment in recording.segments)
    return Plan(tuple(buffers), places, barriers, copied)


def row_stride(value: Value, *, output: bool) -> int:
    """Floats from one row to the next: whole cache lines; outputs are dense."""
    return value.columns if output else -(-value.columns // 16) * 16


def _values(ops: Sequence[Op], recording: Recording) -> list[Value | Prepared]:
    found = [v for op in ops for v in (*op.inputs, *op.outputs)]
    return found + [v for outputs in recording.outputs for v in outputs.values()]


def _owners(ops: Sequence[Op]) -> dict[int, Value | Prepared]:
    """Storage id → the value that is all of it (the widest view where it is written in parts)."""
    owners: dict[int, Value | Prepared] = {}
    for op in ops:
        for v in (*op.inputs, *op.outputs):
            if isinstance(v, Prepared):
                owners[v.id] = v
            else:
                end = v.offset + v.columns
                known = owners.get(v.storage)
                if known is None or known.columns < end:
                    owners[v.storage] = Value(v.storage, v.rows, end, v.storage, 0)
    return owners


def _home(homes: dict[int, tuple[int, int]], storage: int) -> tuple[int, int]:
    """Follows in-place writes to the storage that has memory: (storage, column offset)."""
    offset = 0
    while storage in homes:
        storage, more = homes[storage]
        offset += more
    return storage, offset


def _in_place(ops: Sequence[Op], pinned: set[int]) -> dict[int, tuple[int, int]]:
    """storage of an op's output → (storage, offset) of the input it overwrites.

    Within a row-wise record the parts count one by one: a tile passes through them in order.
    """
    parts = [part for op in ops for part in _kernels(op)]
    never = pinned | _not_in_place(ops)
    reads: dict[int, list[tuple[int, Value]]] = {}
    for i, part in enumerate(parts):
        for v in part.inputs:
            if isinstance(v, Value):
                reads.setdefault(v.storage, []).append((i, v))
    homes: dict[int, tuple[int, int]] = {}
    for i, part in enumerate(parts):
        out = part.output
        if not isinstance(out, Value) or out.storage != out.id or out.storage in never:
            continue
        for x in _overwritable(part):
            later = (v for j, v in reads[x.storage] if j > i)
            now = (v for j, v in reads[x.storage] if j == i and v != x)
            if x.storage in never or any(v.overlaps(x) for v in (*later, *now)):
                continue
            homes[out.storage] = (x.storage, x.offset)
            break
    return homes


def _kernels(op: Op) -> tuple[Op, ...]:
    """The ops whose kernels run: the parts of a row-wise record."""
    return op.parts if isinstance(op, RowWise) else (op,)


def _not_in_place(ops: Sequence[Op]) -> set[int]:
    """Storages that a row-wise record keeps local; and what records write of which every worker
    computes a copy: one may still read what another has overwritten."""
    found: set[int] = set()
    for op in ops:
        if isinstance(op, RowWise):
            stored = {v.id for v in op.out if op.one_token is not OneToken.COPIES}
            written = (v for part in op.parts for v in part.outputs)
            found |= {v.storage for v in written if isinstance(v, Value) and v.id not in stored}
    return found


def _overwritable(op: Op) -> tuple[Value, ...]:
    """Inputs that the op's kernel may write its output over, the best first."""
    match op:
        case Rope(x=x) | Unary(x=x):
            return (x,)
        case Add(a=a, b=b):
            return (a, b)
        case Gated(gate=gate):
            return (gate,)
        case _:
            return ()


#: What two values must share to use a buffer in turn: kind of rows, and how a row lies in it.
_Layout = tuple[Rows, object]


def _layout(owner: Value | Prepared, alone: bool) -> _Layout:
    """alone: the value shares with nobody."""
    if alone:
        return owner.rows, None
    if isinstance(owner, Prepared):
        return owner.rows, (owner.kind, owner.columns)
    return owner.rows, row_stride(owner, output=False)


def _assign(
    ops: Sequence[Op],
    owners: dict[int, Value | Prepared],
    homes: dict[int, tuple[int, int]],
    pinned: set[int],
    size: Bytes,
    *,
    keep: bool,
) -> tuple[list[int], dict[int, int]]:
    """Buffers by liveness: (bytes of each, storage with memory → buffer)."""

    def root(v: Value | Prepared) -> int:
        return v.id if isinstance(v, Prepared) else _home(homes, v.storage)[0]

    last = {root(v): i for i, op in enumerate(ops) for v in (*op.inputs, *op.outputs)}
    forever = pinned | {_home(homes, s)[0] for s in pinned}
    buffers: list[int] = []
    assigned: dict[int, int] = {}
    free: dict[_Layout, list[int]] = {}
    for i, op in enumerate(ops):
        for out in op.outputs:
            if root(out) in assigned:
                continue
            owner = owners[root(out)]
            unused = free.get(_layout(owner, keep or root(out) in forever), [])
            if unused:
                chosen = unused.pop(0)
            else:
                chosen = len(buffers)
                buffers.append(size(owner))
            assigned[root(out)] = chosen
        if keep:
            continue
        for r in {root(v) for v in (*op.inputs, *op.outputs)}:
            if last[r] == i and r not in forever:
                free.setdefault(_layout(owners[r], False), []).append(assigned[r])
    return buffers, assigned
