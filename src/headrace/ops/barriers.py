"""Where workers must meet: before an op that touches memory which an op since the last meeting
wrote, or that writes memory which such an op reads; except where both share that memory alike.

    rows   whole rows, worker w the same rows of every op on one kind of rows (step.h)
    own    a copy per worker, in steps of one token (row_wise.h, OneToken::Copies)
    all    any worker may touch any of it: matmuls, attention, gathers

In a step of one token row-wise records are shared in other ways than in one of several, so each op
has an answer for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, IntFlag

from headrace.ops.recording import (
    Attend,
    KVWrite,
    Matmul,
    OneToken,
    Op,
    Prepared,
    RowWise,
    Select,
    Value,
)


class Meet(IntFlag):
    """The steps in which workers meet before an op. Values as in program.h."""

    NEVER = 0
    SEVERAL_TOKENS = 1
    ONE_TOKEN = 2


@dataclass(frozen=True, slots=True)
class Place:
    """A value's memory: columns offset … of rows `stride` floats apart (prepared: both 0)."""

    buffer: int
    offset: int
    stride: int


class _Shared(Enum):
    """How workers share touched memory; two that touch it `ALL` ways must meet."""

    ROWS = "rows"
    OWN = "own"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class _Region:
    """Touched memory: columns of a buffer (in which all rows lie alike), or a layer of a KV
    group."""

    where: int | tuple[int, int]
    begin: int = 0
    end: int = 1
    shared: _Shared = _Shared.ALL


def meetings(
    ops: Sequence[Op], places: Mapping[int, Place], copied: AbstractSet[int]
) -> tuple[Meet, ...]:
    """Before which ops of a segment workers meet. copied: as in Plan."""
    several = _barriers([_regions(op, places, frozenset(), one_token=False) for op in ops])
    one = _barriers([_regions(op, places, copied, one_token=True) for op in ops])
    return tuple(
        (Meet.SEVERAL_TOKENS if s else Meet.NEVER) | (Meet.ONE_TOKEN if o else Meet.NEVER)
        for s, o in zip(several, one, strict=True)
    )


def _regions(
    op: Op, places: Mapping[int, Place], copied: AbstractSet[int], *, one_token: bool
) -> tuple[list[_Region], list[_Region]]:
    """What an op reads and what it writes."""
    gathered = {part.x.id for part in op.parts if isinstance(part, Select)}

    def region(v: Value | Prepared, *, written: bool) -> _Region:
        place = places[v.id]
        shared = _sharing(op, v, copied, one_token=one_token, written=written)
        if v.id in gathered:
            shared = _Shared.ALL
        return _Region(place.buffer, place.offset, place.offset + v.columns, shared)

    reads = [region(v, written=False) for v in op.inputs]
    writes = [region(v, written=True) for v in op.outputs]
    for part in op.parts:
        if isinstance(part, KVWrite):
            writes.append(_Region((part.group, part.place)))
        if isinstance(part, Attend):
            reads.append(_Region((part.group, part.place)))
    return reads, writes


def _sharing(
    op: Op, v: Value | Prepared, copied: AbstractSet[int], *, one_token: bool, written: bool
) -> _Shared:
    match op:
        case Matmul():
            own = one_token and v.id in copied
            return _Shared.OWN if own else _Shared.ALL
        case Attend():
            return _Shared.ALL
        case RowWise(one_token=OneToken.COLUMNS) if one_token:
            return _Shared.ALL
        case RowWise(one_token=OneToken.COPIES) if one_token:
            return _Shared.OWN if written and isinstance(v, Prepared) else _Shared.ALL
        case _:
            return _Shared.ROWS


def _must_meet(a: _Region, b: _Region) -> bool:
    """Whether workers must meet between touching a and b."""
    overlap = a.where == b.where and a.begin < b.end and b.begin < a.end
    return overlap and (a.shared is not b.shared or a.shared is _Shared.ALL)


def _barriers(touched: Sequence[tuple[list[_Region], list[_Region]]]) -> list[bool]:
    barriers = []
    read: list[_Region] = []
    written: list[_Region] = []
    for reads, writes in touched:
        needed = any(_must_meet(a, b) for a in (*reads, *writes) for b in written) or any(
            _must_meet(a, b) for a in writes for b in read
        )
        if needed:
            read, written = [], []
        read += reads
        written += writes
        barriers.append(needed)
    return barriers
