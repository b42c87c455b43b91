"""call_op: one recorded op asked of another interpreter, on inputs of the caller's choice."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ops.contract import Ops, V
from headrace.ops.recording import (
    Add,
    Attend,
    Embed,
    Gated,
    KVWrite,
    LayerNorm,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Select,
    Unary,
    UnaryKind,
)


def call_op(op: Op, ops: Ops[V], inputs: Sequence[V]) -> V | None:
    """The op's result on `inputs` (in the order of `op.inputs`); None for kv_write."""
    match op:
        case Embed(weight=weight, index=index):
            return ops.embed(weight, index)
        case RmsNorm(weight=weight, eps=eps, groups=groups):
            return ops.rms_norm(inputs[0], weight, eps, groups)
        case LayerNorm(weight=weight, bias=bias, eps=eps):
            return ops.layer_norm(inputs[0], weight, bias, eps)
        case Linear(weight=weight, bias=bias):
            return ops.linear(inputs[0], weight, bias)
        case Rope(heads=heads, spec=spec):
            return ops.rope(inputs[0], heads, spec)
        case KVWrite(group=group, place=place, kv_heads=kv_heads):
            ops.kv_write(inputs[0], inputs[1], group=group, layer=place, kv_heads=kv_heads)
            return None
        case Attend():
            return ops.attend(
                inputs[0],
                group=op.group,
                layer=op.place,
                heads=op.heads,
                kv_heads=op.kv_heads,
                scale=op.scale,
                window=op.window,
                soft_cap=op.soft_cap,
            )
        case Gated(activation=activation):
            return ops.gated(inputs[0], inputs[1], activation)
        case Unary(kind=kind, value=value):
            return _call_unary(kind, value, ops, inputs[0])
        case Add():
            return ops.add(inputs[0], inputs[1])
        case Select(out=out):
            return ops.rows(inputs[0], out.rows)
    raise AssertionError(f"{op} is no op of the vocabulary")


def _call_unary(kind: UnaryKind, value: float, ops: Ops[V], x: V) -> V:
    match kind:
        case UnaryKind.GELU:
            return ops.gelu(x)
        case UnaryKind.SCALE:
            return ops.scale(x, value)
        case UnaryKind.SOFT_CAP:
            return ops.soft_cap(x, value)
        case UnaryKind.COPY:
            return x
