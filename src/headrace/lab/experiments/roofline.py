"""roofline: every kind of op of a prefill and of decode steps, under the machine's roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.cases import Case, Kind
from headrace.bench.gate import QUICK_RUNGS
from headrace.bench.profile import profile_case
from headrace.bench.setup import Settings, make_config
from headrace.engine.core import Engine
from headrace.engine.model import native_executor, vocabulary_of
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.plots import STYLES
from headrace.lab.statistics import Interval, exact, median_interval
from headrace.lab.values import Check, Findings, Prediction, Table
from headrace.lab.values import Kind as Meant
from headrace.limits.bound import bound
from headrace.limits.op_rows import OpRow
from headrace.limits.rates import MachineRates, median_rates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, StepCost
from headrace.ops.kv import KVFormat
from headrace.ops.recording import Linear
from headrace.verify.ladder import run_ladder

_PROMPT = 512
_BATCH = 16
#: Short prompts, so that all sequences of the batch soon decode together.
_BATCH_PROMPT = 64
#: Decode steps that a profile sees at most; their middle context stands for all.
_NUM_STEPS = 15
#: A kind of op that takes a smaller share of its step is not drawn.
_LEAST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that is profiled. case: as bench/profile.py times it. chunks: its work."""

    key: str
    name: str
    case: Case
    chunks: tuple[Chunk, ...]

    def cost(self, costs: CostModel) -> StepCost:
        return costs.step(self.chunks)


def _steps() -> tuple[_Step, ...]:
    half = 1 + _NUM_STEPS // 2
    alone = Case(Kind.DECODE, 0, _NUM_STEPS, depth=_PROMPT)
    together = Case(Kind.BATCH, _BATCH_PROMPT, 2 * _NUM_STEPS, batch=_BATCH)
    return (
        _Step("prefill", f"prefill of {_PROMPT}", Case(Kind.PREFILL, _PROMPT, 0),
              (Chunk(_PROMPT, _PROMPT),)),
        _Step("decode", "decode, batch 1", alone, (Chunk(1, _PROMPT + half),)),
        _Step("batch", f"decode, batch {_BATCH}", together,
              (Chunk(1, _BATCH_PROMPT + half),) * _BATCH),
    )  # fmt: skip


class Roofline(Experiment):
    """See docs/lab/roofline.md."""

    name = "roofline"
    title = "Every op under the machine's roof"
    question = (
        "Which ops of a step wait for memory, which for arithmetic, and how close do they come?"
    )
    claim = (
        "A matmul's operations per byte are about the number of tokens in the step, so prefill is "
        "limited by arithmetic and decode by memory (Williams, Waterman and Patterson, "
        "“Roofline”, 2009)."
    )
    quick_s = 45.0
    full_s = 180.0
    faults = ("mask-off-by-one", "skipped-norm")
    try_this = (
        "`headrace lab run roofline --quick --model qwen2.5-coder-0.5b`: more bytes per op, so "
        "fixed costs of small ops weigh less.",
        "`--threads 1`: half the peak, but more than half the bandwidth; the ridge moves left.",
        "`headrace bench run MODEL --ops` prints the same rows for any length and batch.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        rates = lab.rates()
        costs = lab.costs(cache_bytes=rates.llc_bytes)
        steps = {step.key: step.cost(costs) for step in _steps()}
        bounds = {key: bound(cost, rates) for key, cost in steps.items()}
        grown = bounds["batch"].serial_s / bounds["decode"].serial_s
        predictions = [
            Prediction(
                f"roof {key}",
                f"{key}: the most that a kind of op reaches of its own roof",
                1.0,
                "of the roof",
                "no op can be faster than its bytes and operations allow at the probed rates; 10 % "
                "for a machine that changes between probe and step",
                Meant.AT_MOST,
                tolerance=1.1,
            )
            for key in steps
        ]
        predictions.append(
            Prediction(
                "growth",
                f"time of a decode step at batch {_BATCH} over batch 1",
                grown,
                "×",
                "ratio of the serial sums of the two steps: weights are read once for all",
                tolerance=1.5,
            )
        )
        for key in ("prefill", "decode"):
            cost = steps[key].by_kind()
            of = bound_share(steps[key], rates)
            predictions.append(
                Prediction(
                    f"linear {key}",
                    f"{key}: share of the time in matmuls",
                    of,
                    "of the step",
                    f"their share of the serial sum ({cost['linear'].num_bytes / 1e6:.0f} MB, "
                    f"{cost['linear'].operations / 1e9:.2f} Gop)",
                    tolerance=1.25,
                )
            )
        return predictions

    def check(self, lab: Lab) -> list[Check]:
        subject = lab.subject()
        report = run_ladder(subject, reference=False, only=lambda name: name in QUICK_RUNGS)
        return [
            Check(rung.name, rung.passed, f"max |Δ| {rung.max_abs_error:g}, {rung.detail.strip()}")
            for rung in report.rungs
        ]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        steps = _steps()
        profiles, rates = _profile(lab, steps, repetitions=5 if lab.quick else 15)
        findings = Findings()
        seconds = {step.key: _total(profiles[step.key]) for step in steps}
        findings.measured["growth"] = median_interval(
            [b / a for a, b in zip(seconds["decode"], seconds["batch"], strict=True)]
        )
        points = {step.key: _points(profiles[step.key]) for step in steps}
        for step in steps:
            best = max((p for p in points[step.key] if p.of_roof), key=lambda p: p.roof.value)
            findings.measured[f"roof {step.key}"] = best.roof
            findings.tables.append(_table(step, points[step.key]))
        for key in ("prefill", "decode"):
            findings.measured[f"linear {key}"] = _linear_share(profiles[key])
        self._conclude(findings, points, rates)
        _draw(lab, steps, points, rates)
        return findings

    def _conclude(
        self, findings: Findings, points: Mapping[str, list[_Point]], rates: MachineRates
    ) -> None:
        ridge = rates.int8_ops_per_s / rates.read_bytes_per_s
        for key in ("decode", "prefill"):
            matmuls = [p for p in points[key] if p.name.startswith("matmul") and p.intensity]
            for point in matmuls:
                side = "memory" if (point.intensity or 0) < ridge else "arithmetic"
                findings.conclude(
                    f"{key}: {point.name} does {point.intensity:.1f} operations per byte; the int8 "
                    f"ridge of this machine lies at {ridge:.0f}, so {side} limits it; it reaches "
                    f"{100 * point.roof.value:.0f} % of its roof "
                    f"({100 * point.roof.low:.0f} … {100 * point.roof.high:.0f})."
                )
        findings.notes.append(
            "Rates are those of the probes before each repetition; timing every op costs each a "
            "barrier and a clock, so these steps are a little slower than unprofiled ones."
        )


@dataclass(frozen=True, slots=True)
class _Point:
    """One kind of op. intensity: operations per byte, None where no byte must move. roof: share of
    its own limit. speed: operations per second, median."""

    name: str
    count: int
    share: Interval
    roof: Interval
    intensity: float | None
    speed: float
    seconds: float

    @property
    def of_roof(self) -> bool:
        return self.roof.value > 0


def bound_share(cost: StepCost, rates: MachineRates) -> float:
    """Matmuls' share of a step's serial sum."""
    whole = bound(cost, rates).serial_s
    linear = StepCost(tuple(op for op in cost.ops if isinstance(op.op, Linear)))
    return bound(linear, rates).serial_s / whole


def _profile(
    lab: Lab, steps: Sequence[_Step], *, repetitions: int
) -> tuple[dict[str, list[tuple[OpRow, ...]]], MachineRates]:
    """Rows of every step, repetition by repetition in turns; the median of the probes."""
    model = lab.open()
    threads = lab.threads
    config = make_config(model, [step.case for step in steps], Settings(), threads)
    executor = native_executor(model.program, config)
    engine = Engine(executor, vocabulary_of(model), config)
    probes: list[MachineRates] = []
    found: dict[str, list[tuple[OpRow, ...]]] = {step.key: [] for step in steps}
    for repetition in range(repetitions + 1):  # the first warms up
        lab.tell(f"repetition {repetition} of {repetitions}", repetition / (repetitions + 1))
        for step in steps:
            rates = lab.rates()
            costs = lab.costs(kv_format=KVFormat(config.kv_format), cache_bytes=rates.llc_bytes)
            tables = profile_case(engine, executor, step.case, costs, rates)
            assert tables
            assert tables[-1].step.startswith("one token") == (step.key != "prefill")
            if repetition:
                probes.append(rates)
                found[step.key].append(tables[-1].rows)
    return found, median_rates(probes)


def _total(profiles: Sequence[tuple[OpRow, ...]]) -> list[float]:
    return [sum(row.seconds for row in rows) for rows in profiles]


def _linear_share(profiles: Sequence[tuple[OpRow, ...]]) -> Interval:
    return median_interval(
        [sum(row.share for row in rows if row.name.startswith("matmul")) for rows in profiles]
    )


def _points(profiles: Sequence[tuple[OpRow, ...]]) -> list[_Point]:
    """By name, the slowest first."""
    names = [row.name for row in profiles[0]]
    points = []
    for name in names:
        rows = [row for rows in profiles for row in rows if row.name == name]
        first = rows[0]
        roofs = [row.of_limit for row in rows if row.of_limit is not None]
        points.append(
            _Point(
                name,
                first.count,
                share=median_interval([row.share for row in rows]),
                roof=median_interval(roofs) if roofs else exact(0.0),
                intensity=first.operations / first.num_bytes if first.num_bytes else None,
                speed=median_interval([row.operations / row.seconds for row in rows]).value,
                seconds=median_interval([row.seconds for row in rows]).value,
            )
        )
    return sorted(points, key=lambda point: -point.seconds)


def _table(step: _Step, points: Sequence[_Point]) -> Table:
    return Table(
        step.name,
        ["op", "count", "ms", "share of the step", "operations per byte", "Gop/s",
         "share of its roof", "low", "high"],
        [
            [p.name, p.count, 1e3 * p.seconds, p.share.value, p.intensity,
             p.speed / 1e9 if p.speed else None,
             *((p.roof.value, p.roof.low, p.roof.high) if p.of_roof else (None, None, None))]
            for p in points
        ],
        "Operations per byte: — where no byte must cross the memory bus. Ops without work of the "
        "model (preparing activations) have no roof.",
    )  # fmt: skip


def _draw(
    lab: Lab,
    steps: Sequence[_Step],
    points: Mapping[str, Sequence[_Point]],
    rates: MachineRates,
) -> None:
    caption = (
        "Kinds of ops of three steps (hollow: what the roof allows at this many operations per "
        "byte, filled: measured, same colour and marker), under the machine's roof as probed."
    )
    alt = "Operations per second over operations per byte, log axes, with the roof of the machine"
    names = dict.fromkeys(p.name for step in steps for p in _shown(points[step.key]))
    styles = {name: STYLES[place % len(STYLES)][:2] for place, name in enumerate(names)}
    with lab.figure("roof", caption, alt, columns=len(steps)) as (figure, axes):
        for axis, step in zip(axes, steps, strict=True):
            _draw_roof(axis, rates)
            for point in _shown(points[step.key]):
                _draw_point(axis, point, *styles[point.name])
            axis.set_title(step.name, fontsize=10)
        axes[0].set_ylabel("operations per second")
        handles = {
            label: handle
            for axis in axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=5, fontsize=8
        )


def _shown(points: Sequence[_Point]) -> list[_Point]:
    return [p for p in points if p.intensity and p.of_roof and p.share.value >= _LEAST_SHARE]


def _draw_roof(axis: Any, rates: MachineRates) -> None:
    first, last = 0.3, 5e3
    bandwidth = rates.read_bytes_per_s
    for name, peak, dash in (
        ("int8", rates.int8_ops_per_s, "-"),
        ("bf16", rates.bf16_ops_per_s, "--"),
        ("f32", rates.f32_ops_per_s, ":"),
    ):
        axis.plot(
            [first, peak / bandwidth, last], [first * bandwidth, peak, peak],
            color="#666666", linestyle=dash, marker="", linewidth=1.2, label=f"{name} roof",
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("operations per byte")


def _draw_point(axis: Any, point: _Point, colour: str, marker: str) -> None:
    """Hollow: what its roof allows. Filled: measured."""
    x, measured = point.intensity, point.speed
    allowed = measured / point.roof.value
    look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": ""}
    axis.plot([x, x], [measured, allowed], color=colour, linewidth=1, marker="", linestyle="-")
    axis.plot([x], [allowed], markerfacecolor="none", **look)
    axis.plot([x], [measured], label=point.name, **look)
