"""batching: does continuous batching beat static batching, and what does a larger batch cost whom?

One engine and one set of kernels serve the same heavy-tailed backlog both ways. Then a step is
timed at batch 1 … 64: everybody waits longer for a token, and more tokens come out.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.lab.batching.checks import same_logits, same_texts
from headrace.lab.batching.steps import batch_predictions, measure_steps, report_steps
from headrace.lab.batching.trace import measure_trace, report_trace
from headrace.lab.batching.workload import MODES, SLOTS, percentile, plan
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.traces import mean_over_longest, utilisation
from headrace.lab.values import Check, Findings, Prediction


class Batching(Experiment):
    name = "batching"
    title = "Static and continuous batching; latency against throughput"
    question = (
        "What does it cost to wait for the slowest request of a batch, and what does a larger "
        "batch cost each request?"
    )
    claim = (
        "Static batching uses about mean ÷ longest answer of its slots; admitting between steps "
        "(iteration-level scheduling, Orca, OSDI 2022) fills them. A larger batch makes each token "
        "later and all tokens together more."
    )
    quick_s, full_s = 40.0, 240.0
    faults = ("row-swap", "stale-block-table")
    try_this = (
        "headrace lab run batching --model qwen2.5-coder-0.5b: a larger model reads more weights "
        "per step, so sharing them over a batch pays more",
        "headrace lab run batching --seed 2: another trace of the same distribution",
        "headrace lab run batching --inject row-swap: two answers of a batch change places, and "
        "the check must notice",
        "headrace serve MODEL --max-num-seqs 4: fewer slots, lower latency, less throughput",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        work, costs, rates = plan(lab), lab.costs(), lab.rates()
        found = [
            Prediction(
                f"utilisation_{mode}",
                f"share of {SLOTS} slots at work, {mode} batching",
                utilisation([len(step) for step in work.steps[mode]], SLOTS),
                "share",
                how,
                tolerance=1.0,
                slack=0.001,
            )
            for mode, how in (
                ("static", "steps counted from the lengths alone; mean ÷ longest answer of each "
                 f"batch gives {mean_over_longest(work.jobs, SLOTS):.3f}"),
                ("continuous", "steps counted from the lengths alone"),
            )
        ]  # fmt: skip
        bounds = {mode: work.bounds(mode, costs, rates) for mode in MODES}
        how = "bounds of all steps of the trace, summed; the same share of them for both"
        found.append(
            Prediction(
                "gain",
                "throughput, continuous ÷ static",
                sum(bounds["static"]) / sum(bounds["continuous"]),
                "×",
                how,
            )
        )
        late = {mode: percentile(work.ttft_s(mode, bounds[mode]), 50) for mode in MODES}
        found.append(
            Prediction(
                "ttft_gain",
                "median time to first token, static ÷ continuous",
                late["static"] / late["continuous"],
                "×",
                "bounds of the steps before each first token",
            )
        )
        return found + batch_predictions(costs, rates)

    def check(self, lab: Lab) -> list[Check]:
        with lab.stage("each request alone, in static and in continuous batches", 0.6):
            checks = [same_logits(lab)]
        with lab.stage("the whole trace both ways", 0.4):
            return [*checks, same_texts(lab, plan(lab))]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        work = plan(lab)
        with lab.stage("the trace, static and continuous in turns", 0.55):
            runs = measure_trace(lab, work, 5 if lab.quick else 9)
        report_trace(lab, work, runs, found)
        with lab.stage("steps of growing batches", 0.45):
            steps = measure_steps(lab, 7 if lab.quick else 15)
        report_steps(lab, steps, found)
        return found
