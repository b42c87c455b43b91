"""The limit of a step on a machine: what its costs divided by the machine's rates leave at least.

    bound       max(Σ bytes ÷ bandwidth, Σ operations ÷ peak)   memory and arithmetic overlap fully
    serial sum  Σ over ops of max(bytes ÷ bandwidth, operations ÷ peak)   overlap inside ops only

The bound is what "percent of the limit" means. This file knows no model and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from headrace.limits.rates import MachineRates
from headrace.ops.counts import OpCost, StepCost, Unit
from headrace.ops.recording import Attend, Linear, Op


class Peaks(Enum):
    """Which peak rate limits an op.

    STANDARD: matmuls at the int8 peak and attention at the bf16 peak whatever the formats, so that
    no choice of ours (a slower activation format, say) lowers the bar; every measured percentage
    uses it. OWN: each op at the peak of its own number format, for planning.
    """

    STANDARD = "standard"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds. memory_s: all bytes at the read bandwidth. compute_s: all operations, each at its
    peak. serial_s: the serial sum."""

    memory_s: float = 0.0
    compute_s: float = 0.0
    serial_s: float = 0.0

    @property
    def bound_s(self) -> float:
        """No step can take less."""
        return max(self.memory_s, self.compute_s)

    @property
    def limited_by(self) -> str:
        """ "memory" or "compute"."""
        return "memory" if self.memory_s >= self.compute_s else "compute"


def bound(cost: StepCost, rates: MachineRates, peaks: Peaks = Peaks.STANDARD) -> Bound:
    """The limit of one step."""
    return bound_of(cost.ops, rates, peaks)


def bound_of(ops: Iterable[OpCost], rates: MachineRates, peaks: Peaks = Peaks.STANDARD) -> Bound:
    """The limit of some ops of a step, as if they were all of it."""
    num_bytes, serial = 0, 0.0
    work = dict.fromkeys(Unit, 0)
    for cost in ops:
        unit = limiting_unit(cost.op, cost.unit, peaks)
        num_bytes += cost.num_bytes
        work[unit] += cost.operations
        moving = cost.num_bytes / rates.read_bytes_per_s
        serial += max(moving, cost.operations / _rate(unit, rates))
    compute = compute_s(work[Unit.INT8], work[Unit.BF16], work[Unit.F32], rates)
    return Bound(num_bytes / rates.read_bytes_per_s, compute, serial)


def compute_s(int8: int, bf16: int, f32: int, rates: MachineRates) -> float:
    """Seconds for so many operations limited by each unit's peak."""
    return int8 / rates.int8_ops_per_s + bf16 / rates.bf16_ops_per_s + f32 / rates.f32_ops_per_s


def peak(cost: OpCost, rates: MachineRates, peaks: Peaks = Peaks.STANDARD) -> float:
    """The operations per second that limit an op."""
    return _rate(limiting_unit(cost.op, cost.unit, peaks), rates)


def limiting_unit(op: Op, own: Unit, peaks: Peaks) -> Unit:
    """The unit whose peak limits an op. own: that of the op's number format."""
    if peaks is Peaks.STANDARD:
        match op:
            case Linear():
                return Unit.INT8
            case Attend():
                return Unit.BF16
    return own


def _rate(unit: Unit, rates: MachineRates) -> float:
    match unit:
        case Unit.INT8:
            return rates.int8_ops_per_s
        case Unit.BF16:
            return rates.bf16_ops_per_s
        case Unit.F32:
            return rates.f32_ops_per_s
