"""Memory plan of a fused program: which buffer each value lies in, and where workers must meet.

Three rules, applied in order:
1. An element-wise op writes over its first input where nobody reads that input afterwards.
2. Buffers are reused once the last reader of what they held is done (liveness), by values whose
   rows lie alike, so that rule 3 can go row by row. Outputs stay.
3. A barrier stands before an op that touches memory which an op since the last barrier wrote, or
   writes memory which such an op reads; except where both go row by row, because then the same
   worker does the same rows of both (step.h).

With keep=True rules 1 and 2 are off: every value has its own buffer and can be read after a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.ops.contract import Rows
from headrace.ops.recording import (
    Add,
    Attend,
    Gated,
    KVWrite,
    Matmul,
    Op,
    Prepared,
    Recording,
    Rope,
    Select,
    Unary,
    Value,
)

Bytes = Callable[[Value | Prepared], int]


@dataclass(frozen=True, slots=True)
class Place:
    """A value's memory: columns offset … of rows `stride` floats apart (prepared: both 0)."""

    buffer: int
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class Plan:
    """buffers: bytes of each. places: value id → memory. barriers[s][i]: meet before op i of
    segment s."""

    buffers: tuple[int, ...]
    places: dict[int, Place]
    barriers: tuple[tuple[bool, ...], ...]


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
    barriers = tuple(_barriers(segment, places) for segment in recording.segments)
    return Plan(tuple(buffers), places, barriers)


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
    """storage of an op's output → (storage, offset) of the input it overwrites."""
    reads: dict[int, list[tuple[int, Value]]] = {}
    for i, op in enumerate(ops):
        for v in op.inputs:
            if isinstance(v, Value):
                reads.setdefault(v.storage, []).append((i, v))
    homes: dict[int, tuple[int, int]] = {}
    for i, op in enumerate(ops):
        out = op.output
        if not isinstance(out, Value) or out.storage != out.id or out.storage in pinned:
            continue
        for x in _overwritable(op):
            later = (v for j, v in reads[x.storage] if j > i)
            now = (v for j, v in reads[x.storage] if j == i and v != x)
            if x.storage in pinned or any(v.overlaps(x) for v in (*later, *now)):
                continue
            homes[out.storage] = (x.storage, x.offset)
            break
    return homes


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


@dataclass(frozen=True, slots=True)
class _Region:
    """Touched memory: columns of a buffer, or a layer of a KV group. by_row: workers share it row
    by row (within a buffer all rows lie alike, see _layout); else anyone may touch any row."""

    where: int | tuple[int, int]
    begin: int = 0
    end: int = 1
    by_row: bool = False


def _regions(op: Op, places: dict[int, Place]) -> tuple[list[_Region], list[_Region]]:
    """What an op reads and what it writes."""
    everywhere = isinstance(op, Matmul | Attend)

    def region(v: Value | Prepared, *, by_row: bool) -> _Region:
        place = places[v.id]
        return _Region(place.buffer, place.offset, place.offset + v.columns, by_row)

    reads = [region(v, by_row=not everywhere and not isinstance(op, Select)) for v in op.inputs]
    writes = [region(v, by_row=not everywhere) for v in op.outputs]
    if isinstance(op, KVWrite):
        writes.append(_Region((op.group, op.place)))
    if isinstance(op, Attend):
        reads.append(_Region((op.group, op.place)))
    return reads, writes


def _meet(a: _Region, b: _Region) -> bool:
    """Whether workers must meet between touching a and b."""
    overlap = a.where == b.where and a.begin < b.end and b.begin < a.end
    return overlap and not (a.by_row and b.by_row)


def _barriers(ops: Sequence[Op], places: dict[int, Place]) -> tuple[bool, ...]:
    barriers = []
    read: list[_Region] = []
    written: list[_Region] = []
    for op in ops:
        reads, writes = _regions(op, places)
        needed = any(_meet(a, b) for a in (*reads, *writes) for b in written) or any(
            _meet(a, b) for a in writes for b in read
        )
        if needed:
            read, written = [], []
        read += reads
        written += writes
        barriers.append(needed)
    return tuple(barriers)
