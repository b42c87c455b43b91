"""Fusion: rewrites of a recorded program that skip stores or repeated work, never a rounding.

A sequence of rules, each a function Recording → Recording with its reason. Every rule keeps ids of
values and what they hold; an op that stands for several names them (`Op.parts`), so that costs and
profiles can be told per op of the model. The order matters: a later rule sees what earlier ones
left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.ops.fuse_rows import row_wise
from headrace.ops.recording import ActivationKind, Linear, Matmul, Op, Prepare, Prepared, Recording

Rule = Callable[[Recording], Recording]


def fuse(
    recording: Recording, kind_of: Callable[[str], ActivationKind], *, fusion: bool = True
) -> Recording:
    """The program as kernels run it. kind_of: weight name → form of its activations.

    fusion=False: one kernel per op, with shared preparations only, so that every value of the
    recording is stored somewhere.
    """
    shared = share_preparations(recording, kind_of)
    for rule in RULES if fusion else ():
        shared = rule(shared)
    return shared


def share_preparations(recording: Recording, kind_of: Callable[[str], ActivationKind]) -> Recording:
    """A linear becomes a preparation of its input and a matmul on it. Linears that read one value
    in one form share its preparation: queries, keys and values; gate and up."""
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


#: What `fuse` applies after `share_preparations`, in order.
RULES: Sequence[Rule] = (row_wise,)
