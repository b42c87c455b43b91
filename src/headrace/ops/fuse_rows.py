"""The rule `row_wise`: neighbours that go row by row become one record, walked in tiles of rows.

    add → rms_norm → prepare      the sum is stored, the normalised row never
    gated → prepare               the gated row is never stored as float32
    rope → rope → kv_write        a turned key is stored in the KV cache only
    select → rms_norm → prepare   before the output head

It is one rule for all of these because a kernel cannot tell: parts are the ops' own kernels, called
on tiles of rows (row_wise.h). So bits cannot change, and a new row-wise op is fused without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from headrace.ops.contract import Rows
from headrace.ops.recording import (
    Add,
    Attend,
    Gated,
    KVWrite,
    Matmul,
    OneToken,
    Op,
    Prepare,
    Prepared,
    Recording,
    Rope,
    RowWise,
    Select,
    Unary,
    Value,
    rows_of,
)

#: Wider rows are cheaper to share than to repeat, barrier included (docs/decisions.md).
MAX_COPIED_COLUMNS = 2048


def row_wise(recording: Recording) -> Recording:
    """Every longest run of row-wise ops on one kind of rows, also a run of one, as one RowWise."""
    users = _users(recording)
    segments = []
    for segment in recording.segments:
        ops: list[Op] = []
        for kind, run in groupby(segment, key=_kind):
            together = tuple(run)
            ops.extend(together if kind is None else [_fused(together, users)])
        segments.append(tuple(ops))
    return replace(recording, segments=tuple(segments))


def _kind(op: Op) -> Rows | None:
    """What neighbours must have in common to be one record; None: stays alone."""
    return None if isinstance(op, Matmul | Attend | RowWise) else rows_of(op)


def _users(recording: Recording) -> dict[int, set[int]]:
    """Storage → who touches it: identities of ops, and 0 for what is an output of the program."""
    users: dict[int, set[int]] = {}
    for op in recording.ops():
        for v in (*op.inputs, *op.outputs):
            users.setdefault(_storage(v), set()).add(id(op))
    for outputs in recording.outputs:
        for v in outputs.values():
            users.setdefault(v.storage, set()).add(0)
    return users


def _storage(v: Value | Prepared) -> int:
    return v.storage if isinstance(v, Value) else v.id


def _fused(run: tuple[Op, ...], users: dict[int, set[int]]) -> RowWise:
    members = {id(op) for op in run}
    written = [v for op in run for v in op.outputs]
    out = tuple(v for v in written if isinstance(v, Prepared) or not users[v.storage] <= members)
    known = {v.id for v in written} | {_storage(v) for v in written} - {_storage(v) for v in out}
    inputs = (v for op in run for v in op.inputs)
    reads = {v.id: v for v in inputs if v.id not in known and _storage(v) not in known}
    by_blocks = _by_blocks(run, written)
    return RowWise(
        run[0].layer,
        tuple(reads.values()),
        out,
        by_blocks,
        _one_token(run, out, by_blocks),
        fused=run,
    )


def _by_blocks(run: Sequence[Op], written: Sequence[Value | Prepared]) -> bool:
    """Whether columns 32i … 32i + 31 of every value depend on the same columns of others only."""
    widths = {v.columns for op in run for v in (*op.inputs, *op.outputs)}
    whole = all(isinstance(v, Prepared) or v.storage == v.id for v in written)
    return (
        all(isinstance(op, Add | Gated | Unary | Prepare | Select) for op in run)
        and len(widths) == 1
        and whole
    )


def _one_token(run: Sequence[Op], out: Sequence[Value | Prepared], by_blocks: bool) -> OneToken:
    """How workers share the single row of a step of one token.

    A norm needs the whole row, so everyone computes it for themselves; that costs less than the
    barrier it saves. Not where the KV cache is written, and not where a value is written in parts:
    its other parts would be missing from the copy.
    """
    whole = all(isinstance(v, Prepared) or v.storage == v.id for v in out)
    once = any(isinstance(op, KVWrite | Rope) for op in run)
    wide = by_blocks and max(v.columns for v in _values(run)) > MAX_COPIED_COLUMNS
    if whole and not once and not wide and any(isinstance(v, Prepared) for v in out):
        return OneToken.COPIES
    return OneToken.COLUMNS if by_blocks else OneToken.ROW


def _values(run: Sequence[Op]) -> Iterator[Value | Prepared]:
    for op in run:
        yield from op.inputs
        yield from op.outputs
