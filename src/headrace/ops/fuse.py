"""Fusion: rewrites of a recorded program that skip stores or repeated work, never a rounding.

Today: a linear becomes a preparation of its input, shared by all linears that read the same value
in the same form, and a matmul on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.ops.recording import ActivationKind, Linear, Matmul, Op, Prepare, Prepared, Recording


def fuse(recording: Recording, kind_of: Callable[[str], ActivationKind]) -> Recording:
    """The program as kernels run it. kind_of: weight name → form of its activations.

    Values keep their ids and what they hold; prepared activations get new ids.
    """
    num_values = recording.num_values
    segments = []
    for segment in recording.segments:
        ops: list[Op] = []
        prepared: dict[tuple[int, ActivationKind], Prepared] = {}
        for op in segment:
            if not isinstance(op, Linear):
                ops.append(op)
                continue
            key = (op.x.id, kind_of(op.weight))
            if key not in prepared:
                prepared[key] = Prepared(num_values, op.x.rows, op.x.columns, key[1])
                num_values += 1
                ops.append(Prepare(op.layer, op.x, key[1], prepared[key]))
            ops.append(Matmul(op.layer, prepared[key], op.weight, op.bias, op.out))
        segments.append(tuple(ops))
    return replace(recording, segments=tuple(segments), num_values=num_values)
