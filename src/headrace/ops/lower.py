"""Lowering: a fused recording and its memory plan become a program of the native core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.native import core
from headrace.ops.barriers import Meet
from headrace.ops.contract import Activation, RopeLayout, RopeSpec, Rows
from headrace.ops.kv import KVFormat, KVGroupSpec
from headrace.ops.packed import NATIVE_FORMATS, PackedWeights
from headrace.ops.plan import Plan, plan, row_stride
from headrace.ops.recording import (
    Add,
    Attend,
    Embed,
    Gated,
    KVWrite,
    LayerNorm,
    Matmul,
    OneToken,
    Op,
    Prepare,
    Prepared,
    Recording,
    RmsNorm,
    Rope,
    RowWise,
    Select,
    Unary,
    Value,
    rows_of,
)
from headrace.ops.tiles import MAX_TILE_ROWS, Tile, tile_of

if TYPE_CHECKING:
    from headrace.native import _core

# The core's enumerations (step.h).
# Segments after the step run alone, each on rows of its own choice.
_ROWS = {Rows.TOKENS: 0, Rows.LOGIT_ROWS: 1, Rows.PROMPT_ROWS: 2, Rows.HIDDEN_ROWS: 2}
_GATES = {Activation.SILU: 0, Activation.GELU_TANH: 1}
NATIVE_KV_FORMATS = {KVFormat.F32: 0, KVFormat.BF16: 1, KVFormat.F16: 2}


class Lowering:
    """Fills one core program. `program` is ready to run after construction."""

    def __init__(
        self,
        recording: Recording,
        weights: PackedWeights,
        kv_groups: Sequence[KVGroupSpec],
        program: _core.Program,
        max_context: int,
        *,
        keep: bool = False,
    ) -> None:
        self.program = program
        self._weights = weights
        self._max_context = max_context
        self._ropes: dict[RopeSpec, _core.RopeTable] = {}
        self._pinned = {v.storage for outputs in recording.outputs for v in outputs.values()}
        self.plan: Plan = plan(recording, self._bytes, keep=keep)
        self._buffers = [program.add_buffer(size) for size in self.plan.buffers]
        for spec in kv_groups:
            program.add_group(len(spec.layers), spec.kv_heads, spec.k_dim, spec.v_dim)
        for segment, barriers in zip(recording.segments, self.plan.barriers, strict=True):
            for op, meet in zip(segment, barriers, strict=True):
                self._add(op, meet)
            program.end_segment()
        program.finish()

    def matrix(self, value: Value) -> _core.Matrix:
        """Where a value lies."""
        place = self.plan.places[value.id]
        return self.program.matrix(
            self._buffers[place.buffer],
            _ROWS[value.rows],
            value.columns,
            place.stride,
            place.offset,
        )

    def _bytes(self, value: Value | Prepared) -> int:
        rows = _ROWS[value.rows]
        if isinstance(value, Prepared):
            return int(self.program.prepared_bytes(rows, value.kind.value, value.columns))
        stride = row_stride(value, output=value.storage in self._pinned)
        return int(self.program.capacity(rows)) * stride * 4

    def _buffer(self, value: Prepared) -> int:
        return self._buffers[self.plan.places[value.id].buffer]

    def _rope_table(self, spec: RopeSpec) -> _core.RopeTable:
        if spec not in self._ropes:
            self._ropes[spec] = self.program.rope_table(list(spec.frequencies), self._max_context)
        return self._ropes[spec]

    def _add(self, op: Op, meet: Meet) -> None:
        p, m = self.program, self.matrix
        match op:
            case Matmul(x=x, weight=name, bias=bias, out=out):
                vector = None if bias is None else self._weights.vector(bias)
                copies = x.id in self.plan.copied
                p.matmul(self._weights.matrix(name), self._buffer(x), vector, m(out), meet, copies)
            case Attend():
                p.attend(
                    m(op.q),
                    m(op.out),
                    op.group,
                    op.place,
                    op.heads,
                    op.scale,
                    op.window or 0,
                    op.soft_cap or 0.0,
                    meet,
                    op.last_offset,
                    op.head_shift,
                )
            case RowWise():
                tile = tile_of(op)
                p.begin_rows(
                    _ROWS[op.rows], tile.rows, tile.columns, op.one_token.value, tile.floats
                )
                for part in op.parts:
                    self._add_part(part, lambda value: self._in_tile(value, tile))
                p.end_rows(meet)
            case _:
                p.begin_rows(_ROWS[rows_of(op)], MAX_TILE_ROWS, 0, OneToken.ROW.value, 0)
                self._add_part(op, m)
                p.end_rows(meet)

    def _in_tile(self, value: Value, tile: Tile) -> _core.Matrix:
        """Where a value lies for the parts of a row-wise record."""
        if value.storage in tile.local:
            at, stride = tile.local[value.storage]
            return self.program.local_matrix(
                _ROWS[value.rows], value.columns, stride, at + value.offset
            )
        matrix = self.matrix(value)
        if value.storage in tile.spare:
            at, _ = tile.spare[value.storage]
            return self.program.with_spare(matrix, at + value.offset)
        return matrix

    def _add_part(self, op: Op, m: Callable[[Value], _core.Matrix]) -> None:
        """A row-wise op, into the open record."""
        p, w = self.program, self._weights
        match op:
            case Embed(weight=name, index=index, out=out):
                table = w.table(name)
                number = NATIVE_FORMATS[table.format.name]
                p.embed(table.data, number, table.columns, index == "positions", m(out))
            case RmsNorm(x=x, weight=name, eps=eps, groups=groups, out=out):
                p.rms_norm(m(x), m(out), w.vector(name), eps, groups)
            case LayerNorm(x=x, weight=name, bias=bias, eps=eps, out=out):
                p.layer_norm(m(x), m(out), w.vector(name), w.vector(bias), eps)
            case Prepare(x=x, kind=kind, out=out):
                p.prepare(m(x), kind.value, self._buffer(out))
            case Rope(x=x, heads=heads, spec=spec, out=out, decode_offset=offset):
                interleaved = spec.layout is RopeLayout.INTERLEAVED
                p.rope(m(x), m(out), heads, self._rope_table(spec), interleaved, offset)
            case KVWrite(k=k, v=v, group=group, place=place):
                p.kv_write(m(k), m(v), group, place)
            case Gated(gate=gate, up=up, activation=activation, out=out):
                p.gated(m(gate), m(up), m(out), _GATES[activation])
            case Unary(x=x, kind=kind, value=value, out=out):
                p.unary(kind.value, m(x), m(out), value)
            case Add(a=a, b=b, out=out):
                p.add(m(a), m(b), m(out))
            case Select(x=x, out=out):
                p.rows(m(x), m(out))
            case _:
                raise AssertionError(f"no native op for {op}")


def new_program(
    *,
    threads: int,
    isa: str | None,
    max_tokens: int,
    max_requests: int,
    max_context: int,
    pool: _core.Pool | None = None,
) -> _core.Program:
    """An empty core program; its workers are `pool`, or a pool of its own with so many threads.
    ValueError, RuntimeError: core.cpp."""
    native = core()
    program: _core.Program = native.Program(
        native.Pool(threads) if pool is None else pool,
        isa=isa,
        max_tokens=max_tokens,
        max_requests=max_requests,
        max_context=max_context,
    )
    return program
