"""How long a step takes on a calibrated machine: the roof, and the share of it that kernels reach.

    step   = Σ kernels (roof ÷ share + fixed)  +  fixed of a step, of a sequence, of a logit
    roof   linear     max(bytes ÷ bandwidth, operations ÷ peak); what is reached of either is known
                      apart, so that another bandwidth moves the place where they cross
           attention  bytes ÷ bandwidth + operations ÷ peak: one after the other, a block at a time
           row-wise   numbers written ÷ f32 peak

Shares are known per class of op ("linear Q4_K", "attend 128", "row_wise") by the number of rows it
works on. Everything comes from a StepCost, so no weights are needed; who measured the shares, and
how, is not this file's business (limits/calibrate.py does).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import UsageError
from headrace.limits.bound import Peaks, peak
from headrace.limits.rates import MachineRates
from headrace.ops.contract import Rows
from headrace.ops.cost import unit_of
from headrace.ops.counts import Chunk, OpCost, StepCost, visible_before, visible_pairs
from headrace.ops.recording import Attend, KVWrite, Linear, Op
from headrace.quant.formats import FORMATS

#: The class of everything that is neither a linear nor attention.
ROW_WISE = "row_wise"


@dataclass(frozen=True, slots=True)
class Curve:
    """A share of the roof by number of rows: points, lines over the logarithm of rows between them,
    constant beyond. Raises ValueError for points that are none."""

    rows: tuple[int, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        grows = all(a < b for a, b in zip((0, *self.rows), self.rows, strict=False))
        sound = all(1e-9 < s < 1e9 for s in self.shares)
        if not self.rows or len(self.rows) != len(self.shares) or not grows or not sound:
            raise ValueError("a curve needs points of growing rows and positive shares")

    def at(self, rows: float) -> float:
        """The share for so many rows."""
        if rows <= self.rows[0]:
            return self.shares[0]
        if rows >= self.rows[-1]:
            return self.shares[-1]
        i = bisect_left(self.rows, rows)
        low, high = self.rows[i - 1], self.rows[i]
        part = math.log(rows / low) / math.log(high / low)
        return self.shares[i - 1] + part * (self.shares[i] - self.shares[i - 1])


@dataclass(frozen=True, slots=True)
class Reach:
    """The shares of bandwidth and of the peak that a class reaches where only that one limits it:
    at one row, at many."""

    bytes: float = 1.0
    operations: float = 1.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(x) and x > 0 for x in (self.bytes, self.operations)):
            raise ValueError("a reach needs two positive shares")


_ALL = Reach()


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one machine reaches with one version of the kernels.

    cpu, num_threads, isa, version: what it holds for. date: when it was measured. curves: by class
    of op, shares of the roof that reach lowers. reach: by class; all of both where none is given.
    op_s: of starting a kernel, all threads together. step_s, sequence_s, logit_s: seconds of a step
    outside of its kernels, per step, per sequence in it and per logit that is drawn from.
    """

    cpu: str
    num_threads: int
    isa: str
    version: str
    date: str
    curves: Mapping[str, Curve]
    op_s: float
    step_s: float
    sequence_s: float
    logit_s: float
    reach: Mapping[str, Reach] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("op_s", "step_s", "sequence_s", "logit_s"):
            value = getattr(self, name)
            if not 0 <= value < 1e6:
                raise ValueError(f"{name} must not be negative, nor beyond days")
        if ROW_WISE not in self.curves:
            raise ValueError(f"there is no class {ROW_WISE}")

    def seconds(self, kernel: Kernel) -> float:
        """What a kernel's work takes, without the start of it."""
        kind = self.known(kernel.kind)
        return kernel.lowered_s(self.reach.get(kind, _ALL)) / self.curves[kind].at(kernel.rows)

    def known(self, kind: str) -> str:
        """The class itself if it was measured; else its nearest relative: the format with the
        nearest bits of the same unit, the nearest head size."""
        if kind in self.curves:
            return kind
        family, _, member = kind.partition(" ")
        relatives = [name for name in self.curves if name.partition(" ")[0] == family]
        if not relatives:
            raise UsageError(f"The calibration has no figures for {kind}; calibrate anew.")
        return min(relatives, key=lambda name: _distance(name.split(" ")[1], member))

    def to_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them."""
        return {
            "cpu": self.cpu,
            "threads": self.num_threads,
            "isa": self.isa,
            "version": self.version,
            "date": self.date,
            "op_us": 1e6 * self.op_s,
            "step_us": 1e6 * self.step_s,
            "sequence_us": 1e6 * self.sequence_s,
            "logit_ns": 1e9 * self.logit_s,
            "reach": {
                name: {"bytes": r.bytes, "operations": r.operations}
                for name, r in self.reach.items()
            },
            "shares": {
                name: {str(r): s for r, s in zip(c.rows, c.shares, strict=True)}
                for name, c in self.curves.items()
            },
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "calibration") -> Calibration:
        """Raises UsageError naming the source where the values are not those of a calibration."""
        try:
            curves = {
                str(name): Curve(
                    tuple(int(r) for r in points), tuple(float(s) for s in points.values())
                )
                for name, points in values["shares"].items()
            }
            return cls(
                cpu=str(values["cpu"]),
                num_threads=int(values["threads"]),
                isa=str(values["isa"]),
                version=str(values["version"]),
                date=str(values["date"]),
                curves=curves,
                op_s=float(values["op_us"]) / 1e6,
                step_s=float(values["step_us"]) / 1e6,
                sequence_s=float(values["sequence_us"]) / 1e6,
                logit_s=float(values["logit_ns"]) / 1e9,
                reach={
                    str(name): Reach(float(r["bytes"]), float(r["operations"]))
                    for name, r in values.get("reach", {}).items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(
                f"{source} is not a calibration ({error}); remove it and calibrate anew."
            ) from None


@dataclass(frozen=True, slots=True)
class Part:
    """All kernels of a class in a step, or a fixed cost. roof_s, fixed_s: sums over its `count`
    kernels; share: of the roof, None where there is no roof. seconds = roof_s ÷ share + fixed_s."""

    name: str
    count: int
    seconds: float
    roof_s: float = 0.0
    fixed_s: float = 0.0

    @property
    def share(self) -> float | None:
        work = self.seconds - self.fixed_s
        return self.roof_s / work if self.roof_s and work > 0 else None


def estimate(step: StepCost, rates: MachineRates, calibration: Calibration) -> float:
    """Seconds of a step: the sum of its parts."""
    return sum(part.seconds for part in parts_of(step, rates, calibration))


def parts_of(step: StepCost, rates: MachineRates, calibration: Calibration) -> tuple[Part, ...]:
    """The step's classes of op, and its fixed costs, each with its seconds. The step must know its
    chunks."""
    assert step.chunks, "a step without chunks"
    groups: dict[str, list[tuple[float, float, int]]] = {}  # roof, seconds without fixed, kernels
    for kernel in kernels_of(step, rates):
        groups.setdefault(kernel.kind, []).append(
            (kernel.roof_s, calibration.seconds(kernel), kernel.count)
        )
    parts = []
    for name, group in groups.items():
        count = sum(n for _, _, n in group)
        fixed = count * calibration.op_s
        work = sum(seconds for _, seconds, _ in group)
        parts.append(Part(name, count, work + fixed, sum(roof for roof, _, _ in group), fixed))
    num, logits = len(step.chunks), num_logits(step)
    for name, times, each in (
        ("step", 1, calibration.step_s),
        ("sequences", num, calibration.sequence_s),
        ("logits", logits, calibration.logit_s),
    ):
        parts.append(Part(name, times, times * each, fixed_s=times * each))
    return tuple(parts)


# ---- from ops to kernels ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work of one class. rows: what its share goes by. moving_s, computing_s: its bytes and its
    operations alone; together: whether they overlap. count: kernels that are started for it; 0 for
    what only adds work to another."""

    kind: str
    rows: int
    moving_s: float
    computing_s: float
    count: int
    together: bool = False

    @property
    def roof_s(self) -> float:
        return self.lowered_s(_ALL)

    def lowered_s(self, reach: Reach) -> float:
        """The roof where only so much of bandwidth and peak is reached."""
        moving, computing = self.moving_s / reach.bytes, self.computing_s / reach.operations
        return max(moving, computing) if self.together else moving + computing


def kernels_of(step: StepCost, rates: MachineRates) -> Iterator[Kernel]:
    """The kernels of a step, as fusion leaves them: linears and attention alone, neighbours among
    the other ops together with the preparation of what the next linears read."""
    prepared: set[int] = set()
    run: Rows | None = None  # the kind of rows of the row-wise kernel that is open
    mixes: dict[int | None, _Mix] = {}  # by window
    for cost in step.ops:
        match cost.op:
            case Linear(x=x, out=out):
                rows = cost.operations // (2 * x.columns * out.columns)
                if x.id not in prepared:
                    prepared.add(x.id)
                    yield _row_wise(rows, x.columns, rates, alone=run is not x.rows)
                run = None
                moving, computing = _arms(cost, rates)
                kind = linear_class(cost.format)
                yield Kernel(kind, rows, moving, computing, 1, together=True)
            case Attend() as op:
                run = None
                if op.window not in mixes:
                    mixes[op.window] = _mix(step.chunks, op.window)
                yield from _attention(op, cost, mixes[op.window], rates)
            case op:
                value = (op.outputs or op.inputs)[0]
                rows = num_rows(step, value.rows)
                yield _row_wise(rows, _numbers(op), rates, alone=run is not value.rows)
                run = value.rows


def linear_class(number_format: str | None) -> str:
    return f"linear {number_format}"


def attend_class(head_dim: int) -> str:
    return f"attend {head_dim}"


def num_rows(step: StepCost, kind: Rows) -> int:
    """Rows of a kind in a step of whole chunks, whose last rows give logits."""
    return sum(c.num_new for c in step.chunks) if kind is Rows.TOKENS else len(step.chunks)


def num_logits(step: StepCost) -> int:
    """Logits that tokens are drawn from."""
    heads = (c.op for c in step.ops if isinstance(c.op, Linear))
    widths = [op.out.columns for op in heads if op.out.rows is Rows.LOGIT_ROWS]
    return len(step.chunks) * max(widths, default=0)


def _row_wise(rows: int, columns: int, rates: MachineRates, *, alone: bool) -> Kernel:
    return Kernel(ROW_WISE, rows, 0.0, rows * columns / rates.f32_ops_per_s, int(alone))


def _arms(cost: OpCost, rates: MachineRates) -> tuple[float, float]:
    """Seconds of moving and of calculating."""
    moving = cost.num_bytes / rates.read_bytes_per_s
    return moving, cost.operations / peak(cost, rates, Peaks.OWN)


#: Chunks of equal numbers of new tokens: that number, their part of all pairs, and of all
#: positions before the step.
_Mix = list[tuple[int, float, float]]


def _mix(chunks: Sequence[Chunk], window: int | None) -> _Mix:
    """The shares of attention's roof differ by new tokens of a sequence, and steps mix prompts
    with single tokens."""
    pairs: dict[int, int] = {}
    before: dict[int, int] = {}
    for chunk in chunks:
        new, context = chunk.num_new, chunk.context
        pairs[new] = pairs.get(new, 0) + visible_pairs(new, context, window)
        before[new] = before.get(new, 0) + visible_before(new, context, window)
    all_pairs, all_before = sum(pairs.values()), sum(before.values())
    return [
        (new, pairs[new] / all_pairs, (before[new] / all_before) if all_before else 0.0)
        for new in pairs
    ]


def _attention(op: Attend, cost: OpCost, mix: _Mix, rates: MachineRates) -> Iterator[Kernel]:
    moving, computing = _arms(cost, rates)
    kind = attend_class(op.q.columns // op.heads)
    for i, (new, of_pairs, of_before) in enumerate(mix):
        yield Kernel(kind, new, moving * of_before, computing * of_pairs, int(i == 0))


def _numbers(op: Op) -> int:
    """Numbers that a row of a row-wise op writes."""
    if isinstance(op, KVWrite):
        return op.k.columns + op.v.columns
    return sum(v.columns for v in op.outputs)


def _distance(a: str, b: str) -> tuple[float, float]:
    """Of two formats: whether they are multiplied in different units, then bits; of two head sizes,
    their ratio."""
    if a in FORMATS and b in FORMATS:
        bits = abs(FORMATS[a].bits_per_weight - FORMATS[b].bits_per_weight)
        return float(unit_of(a) is not unit_of(b)), bits
    if a.isdecimal() and b.isdecimal():
        return 0.0, abs(math.log(int(a) / int(b)))
    return 2.0, 0.0
