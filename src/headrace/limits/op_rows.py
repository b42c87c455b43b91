"""Where a step's time goes: measured seconds per kernel joined with what their work must cost.

    NativeModel.op_seconds()  (fused op, seconds)  ─┐
    CostModel.step(…)         costs of model ops   ─┴→ rows by kind, each next to its own limit

A fused op stands for several ops of the model (Op.parts) and answers for the sum of their costs;
preparing activations is no op of the model, so it costs time and has no limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from headrace.limits.bound import Peaks, bound_of
from headrace.limits.rates import MachineRates
from headrace.ops.contract import Rows
from headrace.ops.counts import OpCost, StepCost, kind_of
from headrace.ops.recording import KVWrite, Op

#: One step's profile, as NativeModel.op_seconds gives it.
Profile = Sequence[tuple[Op, float]]
#: A kernel and the costs it stands for → the name of its row.
Naming = Callable[[Op, Sequence[OpCost]], str]


@dataclass(frozen=True, slots=True)
class OpRow:
    """All kernels of one kind. name: kind and number formats ("matmul Q4_K"). seconds: of all
    `count` together. share: of the step's kernel time. limit_s: Σ max(bytes ÷ bandwidth,
    operations ÷ peak) over the kernels."""

    name: str
    count: int
    seconds: float
    share: float
    num_bytes: int
    operations: int
    limit_s: float

    @property
    def gb_per_s(self) -> float:
        """Compulsory traffic; 0 where nothing must move."""
        return self.num_bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def gop_per_s(self) -> float:
        return self.operations / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def of_limit(self) -> float | None:
        """limit_s ÷ seconds, 1 = at the limit; None for kernels without work of the model."""
        return self.limit_s / self.seconds if self.seconds and self.limit_s else None


def op_rows(
    profiles: Sequence[Profile],
    cost: StepCost,
    rates: MachineRates,
    peaks: Peaks = Peaks.STANDARD,
    naming: Naming | None = None,
) -> tuple[OpRow, ...]:
    """Rows by name (as a rule by_kind), the slowest first. profiles: of repetitions of one step,
    whose cost is `cost`; each kernel counts with its median time."""
    assert profiles, "no profile; was NativeModel.profile(True) called before the step?"
    ran = {_rows_of(c.op) for c in cost.ops}  # times of kernels without rows are an older step's
    kernels = [_median(times) for times in zip(*profiles, strict=True)]
    kernels = [(op, seconds) for op, seconds in kernels if _rows_of(op) in ran]
    groups: dict[str, list[tuple[float, list[OpCost]]]] = {}
    for (op, seconds), costs in zip(kernels, _join([op for op, _ in kernels], cost), strict=True):
        groups.setdefault((naming or by_kind)(op, costs), []).append((seconds, costs))
    whole = sum(seconds for group in groups.values() for seconds, _ in group)
    rows = (_row(name, group, whole, rates, peaks) for name, group in groups.items())
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _median(times: Sequence[tuple[Op, float]]) -> tuple[Op, float]:
    return times[0][0], median(seconds for _, seconds in times)


def _join(kernels: Iterable[Op], cost: StepCost) -> list[list[OpCost]]:
    """For each kernel the costs of the model ops that it stands for."""
    left = {_key(c.op): c for c in cost.ops}
    found = [
        [left.pop(key) for part in kernel.parts if (key := _key(part)) in left]
        for kernel in kernels
    ]
    assert not left, f"no kernel stands for {next(iter(left.values())).op}"
    return found


def _key(op: Op) -> object:
    """What tells model ops apart and survives fusion: the value that is written, or the place."""
    if isinstance(op, KVWrite):
        return ("kv", op.group, op.place)
    assert op.output is not None
    return op.output.id


def _rows_of(op: Op) -> Rows:
    values = (*op.outputs, *op.inputs)
    return values[0].rows


def by_kind(op: Op, costs: Sequence[OpCost]) -> str:
    """Kind and number formats: "matmul Q4_K"."""
    formats = dict.fromkeys(c.format for c in costs if c.format is not None)
    return " ".join((kind_of(op), *formats))


def by_place(op: Op, costs: Sequence[OpCost]) -> str:
    """Kind, formats and what it does in its layer: "matmul Q4_K: gate", "row_wise: add + rms_norm".
    Kernels of all layers that do the same have one name; "head" makes the logits."""
    weight = getattr(op, "weight", None)
    kinds = dict.fromkeys(kind_of(part) for part in op.parts)
    if weight is not None:
        place = re.sub(r"^(layers\.)?\d+\.|^(embed|lm_head)$", "", weight) or "head"
    elif len(kinds) > 1:
        kinds.pop("prepare", None)
        place = " + ".join(kinds)
    else:
        place = next(iter(kinds))
    kind = by_kind(op, costs)
    return kind if place == kind_of(op) else f"{kind}: {place}"


def _row(
    name: str,
    group: Sequence[tuple[float, list[OpCost]]],
    whole: float,
    rates: MachineRates,
    peaks: Peaks,
) -> OpRow:
    costs = [c for _, cs in group for c in cs]
    seconds = sum(s for s, _ in group)
    limits = (bound_of(cs, rates, peaks).bound_s for _, cs in group)
    return OpRow(
        name=name,
        count=len(group),
        seconds=seconds,
        share=seconds / whole if whole else 0.0,
        num_bytes=sum(c.num_bytes for c in costs),
        operations=sum(c.operations for c in costs),
        limit_s=sum(limits),
    )
