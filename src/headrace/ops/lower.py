"""Lowering: a fused recording and its memory plan become a program of the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.native import core
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
    Op,
    Prepare,
    Prepared,
    Recording,
    RmsNorm,
    Rope,
    Select,
    Unary,
    Value,
)

if TYPE_CHECKING:
    from headrace.native import _core

# The core's enumerations (step.h).
_ROWS = {Rows.TOKENS: 0, Rows.LOGIT_ROWS: 1, Rows.PROMPT_ROWS: 2}
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
            for op, barrier in zip(segment, barriers, strict=True):
                self._add(op, barrier)
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
        rows = int(self.program.capacity(_ROWS[value.rows]))
        if isinstance(value, Prepared):
            return rows * int(self.program.activation_row_bytes(value.kind.value, value.columns))
        return rows * row_stride(value, output=value.storage in self._pinned) * 4

    def _buffer(self, value: Prepared) -> int:
        return self._buffers[self.plan.places[value.id].buffer]

    def _rope_table(self, spec: RopeSpec) -> _core.RopeTable:
        if spec not in self._ropes:
            self._ropes[spec] = self.program.rope_table(list(spec.frequencies), self._max_context)
        return self._ropes[spec]

    def _add(self, op: Op, barrier: bool) -> None:
        p, m, w = self.program, self.matrix, self._weights
        match op:
            case Embed(weight=name, index=index, out=out):
                table = w.table(name)
                number = NATIVE_FORMATS[table.format.name]
                by_position = index == "positions"
                p.embed(table.data, number, table.columns, by_position, m(out), barrier)
            case RmsNorm(x=x, weight=name, eps=eps, groups=groups, out=out):
                p.rms_norm(m(x), m(out), w.vector(name), eps, groups, barrier)
            case LayerNorm(x=x, weight=name, bias=bias, eps=eps, out=out):
                p.layer_norm(m(x), m(out), w.vector(name), w.vector(bias), eps, barrier)
            case Prepare(x=x, kind=kind, out=out):
                p.prepare(m(x), kind.value, self._buffer(out), barrier)
            case Matmul(x=x, weight=name, bias=bias, out=out):
                vector = None if bias is None else w.vector(bias)
                p.matmul(w.matrix(name), self._buffer(x), vector, m(out), barrier)
            case Rope(x=x, heads=heads, spec=spec, out=out, decode_offset=offset):
                interleaved = spec.layout is RopeLayout.INTERLEAVED
                angles = self._rope_table(spec)
                p.rope(m(x), m(out), heads, angles, interleaved, barrier, offset)
            case KVWrite(k=k, v=v, group=group, place=place):
                p.kv_write(m(k), m(v), group, place, barrier)
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
                    barrier,
                    op.last_offset,
                    op.head_shift,
                )
            case Gated(gate=gate, up=up, activation=activation, out=out):
                p.gated(m(gate), m(up), m(out), _GATES[activation], barrier)
            case Unary(x=x, kind=kind, value=value, out=out):
                p.unary(kind.value, m(x), m(out), value, barrier)
            case Add(a=a, b=b, out=out):
                p.add(m(a), m(b), m(out), barrier)
            case Select(x=x, out=out):
                p.rows(m(x), m(out), barrier)
            case _:
                raise AssertionError(f"no native op for {op}")


def new_program(
    *, threads: int, isa: str | None, max_tokens: int, max_requests: int, max_context: int
) -> _core.Program:
    """An empty core program with a worker pool of its own. ValueError, RuntimeError: core.cpp."""
    native = core()
    program: _core.Program = native.Program(
        native.Pool(threads),
        isa=isa,
        max_tokens=max_tokens,
        max_requests=max_requests,
        max_context=max_context,
    )
    return program
