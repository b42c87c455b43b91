"""The rung "native = reference": whole-model logits against torch's dense, uncached mathematics.

The bound comes from the number formats: how far the reference itself moves when it makes the
roundings of docs/numerics.md (twice that). A model that makes none (float weights, f32 KV) is bound
by how far torch's float32 is from its float64 (four times that: two independent error sums, each
with a maximum of its own).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.ops.kv import KVFormat
from headrace.ops.packed import activation_kind
from headrace.ops.program import Program
from headrace.ops.record import record
from headrace.ops.recording import ActivationKind, Linear
from headrace.ops.reference import ReferenceModel
from headrace.verify.result import RungResult
from headrace.verify.rounding import twin_logits
from headrace.verify.subject import Subject

#: Tokens of the text that the reference computes: five tiles, two segments.
REFERENCE_TOKENS = 640
_ROUNDED, _UNROUNDED = 2.0, 4.0


def native_is_reference(subject: Subject) -> RungResult:
    """Logits of the native path at edge positions = the reference's, within the formats' bound."""
    positions = reference_positions(subject)
    ids = subject.workload.text[: positions[-1] + 1]
    native = torch.tensor(np.stack([subject.whole.rows[0, 0, p] for p in positions]))
    found = expected_logits(subject.program, ids, positions, subject.kv_format)
    error, cost = (native.double() - found.plain).abs(), found.cost
    worst = float(error.max()) if bool(error.isfinite().all()) else float("inf")
    flips = int((native.argmax(dim=1) != found.plain.argmax(dim=1)).sum())
    return RungResult.judge(
        "native = reference",
        worst,
        len(positions),
        f"rms {_rms(error):.3g}, of {found.what} {_rms(cost):.3g}; "
        f"argmax differs at {flips} of {len(positions)} positions",
        bound=found.bound,
    )


@dataclass(frozen=True, slots=True)
class Expected:
    """The reference's logits, float64 [n, V], and what its own roundings cost, |Δ| [n, V]; bound:
    how far others may be from them. what: the roundings, in words."""

    plain: Tensor
    cost: Tensor
    bound: float
    what: str


def expected_logits(
    program: Program, ids: list[int], positions: list[int], kv_format: KVFormat
) -> Expected:
    """Of a text, at some positions; see the module's text for the bound."""
    if rounds(program, kv_format):
        plain, other = twin_logits(program, ids, positions, kv_format, torch.float32)
        factor, what = _ROUNDED, "the contract's roundings"
    else:
        with torch.no_grad():
            (plain,) = ReferenceModel(program, torch.float64).logits([ids], [positions])
            (other,) = ReferenceModel(program, torch.float32).logits([ids], [positions])
        factor, what = _UNROUNDED, "torch's float32"
    plain = plain.double()
    cost = (other.double() - plain).abs()
    return Expected(plain, cost, factor * float(cost.max()), what)


def reference_positions(subject: Subject) -> list[int]:
    """The edges that the reference is asked for, ascending."""
    return [p for p in subject.workload.edges if p < REFERENCE_TOKENS]


def rounds(program: Program, kv_format: KVFormat) -> bool:
    """Whether the contract rounds anything on the way but float32 arithmetic."""
    names = (op.weight for op in record(program).ops() if isinstance(op, Linear))
    kinds = (activation_kind(program.weights[name]) for name in names)
    return kv_format is not KVFormat.F32 or any(k is not ActivationKind.F32 for k in kinds)


def _rms(x: torch.Tensor) -> float:
    return float((x * x).mean().sqrt())
