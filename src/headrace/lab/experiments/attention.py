"""attention: the same numbers with and without materialised scores; time and memory over length."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lab.attention.checks import CHECKED, close_to_float64
from headrace.lab.attention.findings import report
from headrace.lab.attention.measurement import measure_cells, measure_told
from headrace.lab.attention.problems import (
    AT,
    FIT_FROM,
    LENGTHS,
    TOLD,
    least_ratio,
    new_problem,
    problem_of,
    told_ways,
    ways,
)
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.memory import FreshProcesses
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.statistics import fit_power
from headrace.lab.values import Check, Findings, Kind, Prediction
from headrace.ops.counts import visible_pairs
from headrace.ops.kv import KVFormat


class Attention(Experiment):
    name = "attention"
    title = "Attention with and without its matrix of scores"
    question = "What changes when the scores of attention are never written to memory?"
    claim = (
        "The numbers stay the same within rounding. Time grows with S² either way; the memory that "
        "naive attention takes does, too (about 800 MB at batch 4, 12 heads, T = 2048 in two-byte "
        "numbers), a tiled one's grows with S (about 60 MB). The gain is memory traffic, not other "
        "mathematics (FlashAttention, NeurIPS 2022)."
    )
    quick_s, full_s = 75.0, 500.0
    faults = ("mask-off-by-one", "kv-head-map", "window-edge")
    try_this = (
        "headrace lab run attention (not --quick): 12 heads; naive attention at 8,192 positions "
        "then takes 6.5 GB for one layer of one sequence",
        "headrace lab run attention --threads 1: does the naive one gain as much from a second "
        "core as the tiled one?",
        "headrace lab run attention --inject mask-off-by-one: a query sees a position too many, "
        "and a text depends on where its prompt was cut",
        "headrace bench run MODEL -d 0,2048,4096 -p 512 --ops: attention's share of a whole step",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        fitted = [s for s in LENGTHS if s >= FIT_FROM]
        work = [float(visible_pairs(s, s, None)) for s in fitted]
        exponent = fit_power(fitted, work).exponent.value
        found = [
            Prediction(
                f"time_{way.kind}",
                f"growth of the time with S ≥ {FIT_FROM}, {way.name}",
                exponent,
                "exponent",
                "operations of the attend op: (query, position) pairs of S positions",
                tolerance=1.0,
                slack=0.2,
            )
            for way in ways()
            if way.format is KVFormat.F32
        ]
        for way in ways():
            if way.format is KVFormat.F32:
                sizes = [float(problem_of(lab, s).peak_bytes(way)) for s in fitted]
                found.append(
                    Prediction(
                        f"memory_{way.kind}",
                        f"growth of the memory with S ≥ {FIT_FROM}, {way.name}",
                        fit_power(fitted, sizes).exponent.value,
                        "exponent",
                        "bytes that must be there at once: result, and scores, probabilities and "
                        "mask where they are materialised"
                        + ("" if way.kind == "naive" else "; what workers need comes on top once"),
                        Kind.VALUE if way.kind == "naive" else Kind.AT_MOST,
                        tolerance=1.0,
                        slack=0.15,
                    )
                )
        found.append(
            Prediction(
                "slower",
                f"time of naive ÷ tiled, float32, S = {AT}",
                least_ratio(problem_of(lab, AT), lab.rates()),
                "×",
                "twice the operations (nothing masked is skipped), and scores and probabilities "
                "each written and read once at the read bandwidth; both as near to their peak",
                tolerance=1.5,
            )
        )
        batch, heads, length = TOLD
        naive, tiled = told_ways()
        for key, way in (("told_naive", naive), ("told_tiled", tiled)):
            problem = new_problem(length, heads, batch)
            found.append(
                Prediction(
                    key,
                    f"memory of {way.name} with its inputs, batch {batch}, {heads} heads, "
                    f"S = {length}",
                    (problem.peak_bytes(way) + problem.input_bytes(way)) / 1e6,
                    "MB",
                    "q, k, v and the result, and what is materialised; two-byte numbers (ours "
                    "takes q and gives its result in four)",
                    tolerance=1.1,
                )
            )
        return found

    def check(self, lab: Lab) -> list[Check]:
        with lab.stage("every way against float64", 0.3):
            checks = [close_to_float64(lab, length) for length in CHECKED]
        with lab.stage("the kernel inside a model", 0.7):
            return checks + rung_checks(lab.subject(), ["whole = chunked", "op by op"])

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        with FreshProcesses(["headrace.lab.attention.cells"]) as fresh:
            with lab.stage("cells", 0.85):
                cells = measure_cells(lab, fresh, 5 if lab.quick else 7)
            with lab.stage("what people are told", 0.15):
                measure_told(lab, fresh, found)
        report(lab, cells, found)
        return found
