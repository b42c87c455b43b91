"""roofline: every op of a prefill and of decode steps, under the machine's roof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bench.cases import Case, Kind
from headrace.bench.gate import QUICK_RUNGS
from headrace.bench.profile import profile_case
from headrace.bench.setup import Settings, make_config
from headrace.engine.core import Engine
from headrace.engine.model import native_executor, vocabulary_of
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.roof_points import Point, draw, of_kinds, points_of, table_of
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.statistics import Interval, median_interval
from headrace.lab.values import Check, Findings, Prediction
from headrace.lab.values import Kind as Meant
from headrace.limits.bound import bound
from headrace.limits.op_rows import OpRow, by_place
from headrace.limits.rates import MachineRates, best_rates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk, StepCost
from headrace.ops.kv import KVFormat
from headrace.ops.recording import Linear

_PROMPT = 512
_BATCH = 16
#: Short prompts, so that all sequences of the batch soon decode together.
_BATCH_PROMPT = 64
#: Decode steps that a profile sees at most; their middle context stands for all.
_NUM_STEPS = 15
_CAPTION = (
    "Every op of three steps, all layers of it together, under the machine's roof as probed. "
    "Hollow: predicted, what the roof allows; filled: measured. Colour: kind; marker: op. At the "
    "right border: ops that move nothing across the memory bus."
)
_ALT = "Operations per second over operations per byte, log axes, with the roof of the machine"


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
    quick_s = 20.0
    full_s = 180.0
    faults = ("mask-off-by-one", "skipped-norm")
    try_this = (
        "`headrace lab run roofline --quick --model qwen2.5-coder-0.5b`: more bytes per op; do the "
        "fixed costs of small ops weigh less?",
        "`--threads 1`: half the peak; how much of the bandwidth, and where is the ridge then?",
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
                f"time of a decode step of {_BATCH} sequences of {_BATCH_PROMPT} positions over "
                f"one of 1 of {_PROMPT}",
                grown,
                "×",
                "ratio of the serial sums of the two steps: weights are read once for all",
                tolerance=1.5,
            )
        )
        for key in ("prefill", "decode"):
            cost = steps[key].by_kind()
            predictions.append(
                Prediction(
                    f"rest {key}",
                    f"{key}: share of the time outside of matmuls",
                    1 - bound_share(steps[key], rates),
                    "of the step",
                    f"what the serial sum has beside matmuls ({cost['linear'].num_bytes / 1e6:.0f} "
                    f"MB, {cost['linear'].operations / 1e9:.2f} Gop)",
                    tolerance=1.5,
                )
            )
        return predictions

    def check(self, lab: Lab) -> list[Check]:
        return rung_checks(lab.subject(), QUICK_RUNGS)

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        steps = _steps()
        profiles, rates = _profile(lab, steps, repetitions=5 if lab.quick else 15)
        findings = Findings()
        seconds = {step.key: _total(profiles[step.key]) for step in steps}
        findings.measured["growth"] = median_interval(
            [b / a for a, b in zip(seconds["decode"], seconds["batch"], strict=True)]
        )
        kinds = {key: points_of([of_kinds(rows) for rows in profiles[key]]) for key in profiles}
        points = {step.name: points_of(profiles[step.key]) for step in steps}
        for step in steps:
            roofs = [p.roof for p in kinds[step.key] if p.roof]
            findings.measured[f"roof {step.key}"] = _highest(roofs)
            findings.tables.append(table_of(step.name, points[step.name]))
        for key in ("prefill", "decode"):
            findings.measured[f"rest {key}"] = _rest(profiles[key])
        self._conclude(findings, kinds, rates)
        draw(lab, points, rates, _CAPTION, _ALT)
        return findings

    def _conclude(
        self, findings: Findings, points: Mapping[str, list[Point]], rates: MachineRates
    ) -> None:
        ridge = rates.int8_ops_per_s / rates.read_bytes_per_s
        for key in ("decode", "prefill"):
            for point in points[key]:
                if not (point.name.startswith("matmul") and point.intensity and point.roof):
                    continue
                side = "memory" if point.intensity < ridge else "arithmetic"
                findings.conclude(
                    f"{key}: {point.name} does {point.intensity:.1f} operations per byte; the int8 "
                    f"ridge of this machine lies at {ridge:.0f}, so {side} limits it; it reaches "
                    f"{point.roof.scaled(100):.0f} % of its roof"
                    f"{_at_roof(point.roof)}."
                )
        findings.notes.append(
            "Rates are the best of the probes up to each step, since others on the machine only "
            "make a probe slower; timing every op costs each a barrier and a clock, so these "
            "steps are a little slower than unprofiled ones."
        )


def bound_share(cost: StepCost, rates: MachineRates) -> float:
    """Matmuls' share of a step's serial sum."""
    whole = bound(cost, rates).serial_s
    linear = StepCost(tuple(op for op in cost.ops if isinstance(op.op, Linear)))
    return bound(linear, rates).serial_s / whole


def _profile(
    lab: Lab, steps: Sequence[_Step], *, repetitions: int
) -> tuple[dict[str, list[tuple[OpRow, ...]]], MachineRates]:
    """Rows of every step, repetition by repetition in turns, and the best of the probes. A roof is
    what the machine can, so that of a step is the best of all probes up to it."""
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
            probes.append(lab.rates())
            rates = best_rates(probes)
            costs = lab.costs(kv_format=KVFormat(config.kv_format), cache_bytes=rates.llc_bytes)
            tables = profile_case(engine, executor, step.case, costs, rates, by_place)
            assert tables
            assert tables[-1].step.startswith("one token") == (step.key != "prefill")
            if repetition:
                found[step.key].append(tables[-1].rows)
    return found, best_rates(probes)


def _total(profiles: Sequence[tuple[OpRow, ...]]) -> list[float]:
    return [sum(row.seconds for row in rows) for rows in profiles]


def _rest(profiles: Sequence[tuple[OpRow, ...]]) -> Interval:
    """Share of the time outside of matmuls."""
    return median_interval(
        [sum(row.share for row in rows if not row.name.startswith("matmul")) for rows in profiles]
    )


def _at_roof(share: Interval) -> str:
    """What a share near 1 means: nothing beats physics, but a probe errs."""
    if share.low > 1:
        return ": above it, so the probe was too low"
    return ", and may be at it: 100 % lies inside" if share.high >= 1 else ""


def _highest(roofs: Sequence[Interval]) -> Interval:
    """The highest of all kinds' shares of their roofs. Whoever is picked because it is the highest
    is flattered by its own interval, so the ends are the highest of all ends."""
    return Interval(
        max(r.value for r in roofs), max(r.low for r in roofs), max(r.high for r in roofs),
        roofs[0].n, f"highest ends of {len(roofs)} kinds, {roofs[0].what}",
    )  # fmt: skip
