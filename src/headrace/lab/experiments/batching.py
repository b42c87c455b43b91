"""batching: does continuous batching beat static batching, and what does a larger batch cost whom?

One engine and one set of kernels serve the same heavy-tailed backlog both ways. Then a step is
timed at batch 1 … 64: everybody waits longer for a token, and more tokens come out.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import GREEDY, run_case
from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import build_engine
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.served import Served, serve_backlog
from headrace.lab.parts.traces import (
    Job,
    Lengths,
    heavy_tailed,
    mean_over_longest,
    serve,
    utilisation,
)
from headrace.lab.plots import style
from headrace.lab.statistics import exact, median_interval, ratio_interval
from headrace.lab.values import Check, Findings, Prediction, Table
from headrace.lab.values import Kind as Sense
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk
from headrace.verify.probe import run_requests
from headrace.verify.result import difference

#: Sequences that run together when the trace is served.
SLOTS = 8
#: Batches whose steps are timed, and positions in the cache at their start.
BATCHES = (1, 2, 4, 8, 16, 32, 64)
DEPTH = 32
_MODES = ("static", "continuous")


@dataclass(frozen=True)
class Plan:
    """The workload of a run. Everything here is a consequence of the lengths alone."""

    jobs: tuple[Job, ...]

    @cached_property
    def steps(self) -> dict[str, list[dict[int, Chunk]]]:
        """By mode: the steps that the trace takes."""
        return {mode: list(serve(self.jobs, SLOTS, static=mode == "static")) for mode in _MODES}

    def bounds(self, mode: str, costs: CostModel, rates: MachineRates) -> list[float]:
        """Least seconds of every step."""
        steps = (list(step.values()) for step in self.steps[mode])
        return [bound(costs.step(chunks), rates).bound_s for chunks in steps]

    def ttft_s(self, mode: str, bounds: Sequence[float]) -> list[float]:
        """By request: when its first token is drawn, were every step at its bound."""
        first: dict[int, float] = {}
        for step, end in zip(self.steps[mode], itertools.accumulate(bounds), strict=True):
            for number in step:
                first.setdefault(number, end)
        return [first[number] for number in range(len(self.jobs))]


def plan(lab: Lab) -> Plan:
    """The trace: four full batches (eight in a full run), most answers short, a few very long."""
    n = (4 if lab.quick else 8) * SLOTS
    prompts, outputs = Lengths(24, 0.6, 96), Lengths(16, 1.2, 256 if lab.quick else 512)
    return Plan(tuple(heavy_tailed(lab.random(), n, prompts, outputs)))


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
    quick_s, full_s = 90.0, 240.0
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
        bounds = {mode: work.bounds(mode, costs, rates) for mode in _MODES}
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
        late = {mode: _percentile(work.ttft_s(mode, bounds[mode]), 50) for mode in _MODES}
        found.append(
            Prediction(
                "ttft_gain",
                "median time to first token, static ÷ continuous",
                late["static"] / late["continuous"],
                "×",
                "bounds of the steps before each first token",
            )
        )
        return found + _batch_predictions(costs, rates)

    def check(self, lab: Lab) -> list[Check]:
        with lab.stage("each request alone, in static and in continuous batches", 0.6):
            checks = [_same_logits(lab)]
        with lab.stage("the whole trace both ways", 0.4):
            return [*checks, _same_texts(lab, plan(lab))]

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        work = plan(lab)
        with lab.stage("the trace, static and continuous in turns", 0.55):
            runs = _measure_trace(lab, work, 5 if lab.quick else 9)
        _report_trace(lab, work, runs, found)
        with lab.stage("steps of growing batches", 0.45):
            steps = _measure_steps(lab, 7 if lab.quick else 15)
        _report_steps(lab, steps, found)
        return found


# ---- correctness --------------------------------------------------------------------------------


def _same_logits(lab: Lab) -> Check:
    """Logits of every drawn token: alone = in static batches of 3 = in continuous ones."""
    subject = lab.subject()
    prompts = [list(ids) for ids in subject.workload.shorts[:4]] + [subject.workload.text[40:77]]
    lengths = [3, 9, 4, 12, 6]
    params = [GREEDY.replace(max_tokens=n) for n in lengths]
    alone = [
        run_requests(*subject.engine(), [ids], [own])
        for ids, own in zip(prompts, params, strict=True)
    ]
    worst, num_rows, num_texts = 0.0, 0, 0
    for mode in _MODES:
        together = run_requests(*subject.engine(batching=mode, max_num_seqs=3), prompts, params)
        for number, single in enumerate(alone):
            worst = max(worst, difference(single.rows, together.of(number)))
            num_rows += len(single.rows)
            num_texts += single.tokens[0] == together.tokens[number]
    return Check(
        "logits and texts alone = in batches of 3, static and continuous",
        worst == 0.0 and num_texts == len(_MODES) * len(alone),
        f"max |Δ| {worst:.3g} over {num_rows} rows; {num_texts} of "
        f"{len(_MODES) * len(alone)} texts equal",
    )


def _same_texts(lab: Lab, work: Plan) -> Check:
    """The whole trace: equal texts, and exactly the steps that were counted beforehand."""
    runs = {mode: _serve(lab, _engine(lab, mode), work) for mode in _MODES}
    equal = sum(a == b for a, b in zip(*(runs[mode].token_ids for mode in _MODES), strict=True))
    steps = {mode: [s.num_seqs for s in run.steps] for mode, run in runs.items()}
    counted = {mode: [len(s) for s in work.steps[mode]] for mode in _MODES}
    return Check(
        "every text of the trace is the same both ways, in the steps that were counted",
        equal == len(work.jobs) and steps == counted,
        f"{equal} of {len(work.jobs)} texts equal; "
        + ", ".join(f"{mode} {len(steps[mode])} steps" for mode in _MODES),
    )


# ---- the trace ----------------------------------------------------------------------------------


def _measure_trace(lab: Lab, work: Plan, repetitions: int) -> dict[str, list[Served]]:
    engines = {mode: _engine(lab, mode) for mode in _MODES}
    runs: dict[str, list[Served]] = {mode: [] for mode in _MODES}
    for number in range(1 + repetitions):  # the first warms up
        for mode, engine in engines.items():
            run = _serve(lab, engine, work)
            if number:
                runs[mode].append(run)
        lab.tell("the trace, static and continuous in turns", number / repetitions)
    return runs


def _report_trace(lab: Lab, work: Plan, runs: dict[str, list[Served]], found: Findings) -> None:
    seconds = {mode: [run.seconds for run in runs[mode]] for mode in _MODES}
    rates = {
        mode: median_interval([run.num_output_tokens / run.seconds for run in runs[mode]])
        for mode in _MODES
    }
    late = {
        (mode, p): median_interval([_percentile(run.ttft_s, p) for run in runs[mode]])
        for mode in _MODES
        for p in (50, 99)
    }
    for mode in _MODES:
        steps = [step.num_seqs for step in runs[mode][0].steps]
        found.measured[f"utilisation_{mode}"] = exact(utilisation(steps, SLOTS))
    gain = ratio_interval(seconds["static"], seconds["continuous"])
    found.measured["gain"] = gain
    sooner = found.measured["ttft_gain"] = ratio_interval(
        *([_percentile(run.ttft_s, 50) for run in runs[mode]] for mode in _MODES)
    )
    found.tables.append(
        Table(
            "trace",
            [
                "batching",
                "steps",
                "slots at work",
                "tok/s",
                "low",
                "high",
                "TTFT p50 ms",
                "TTFT p99 ms",
            ],
            [
                [
                    mode,
                    len(runs[mode][0].steps),
                    f"{found.measured[f'utilisation_{mode}'].value:.1%}",
                    round(rates[mode].value),
                    round(rates[mode].low),
                    round(rates[mode].high),
                    round(1e3 * late[mode, 50].value, 1),
                    round(1e3 * late[mode, 99].value, 1),
                ]
                for mode in _MODES
            ],
            f"{len(work.jobs)} requests at once, {SLOTS} slots; answers of "
            f"{min(j.num_output for j in work.jobs)} … {max(j.num_output for j in work.jobs)} "
            f"tokens, {sum(j.num_output for j in work.jobs)} in all. TTFT from arrival; p99 of "
            f"{len(work.jobs)} requests is the slowest one or nearly so. Medians of "
            f"{gain.n} runs; low, high: {rates['static'].what}.",
        )
    )
    busier = (
        found.measured["utilisation_continuous"].value / found.measured["utilisation_static"].value
    )
    found.conclude(
        f"Continuous batching served this trace {gain:.2f} times as fast as static, the texts "
        f"being equal; its slots were {busier:.2f}× as busy."
        + " Time gains less than slots do: a step with few sequences is cheaper."
        * (gain.low > 1 and gain.high < busier),
        gain.low > 1 or gain.high < 1,
    )
    found.conclude(
        f"With static batching the median request of this trace waited {sooner:.1f} times as long "
        f"for its first token.",
        sooner.low > 1 or sooner.high < 1,
    )
    _draw_slots(lab, runs)


def _draw_slots(lab: Lab, runs: dict[str, list[Served]]) -> None:
    with lab.figure(
        "slots",
        f"Sequences in every step of the same trace, over time; {SLOTS} slots.",
        "Two panels, static and continuous: number of sequences in each step, over seconds.",
        columns=2,
    ) as (_, axes):
        last = max(runs[mode][0].seconds for mode in _MODES)
        for number, mode in enumerate(_MODES):
            steps, axis = runs[mode][0].steps, axes[number]
            ends = np.cumsum([step.step_s for step in steps])
            sizes = [step.num_seqs for step in steps]
            colour = style(number)["color"]
            axis.fill_between([0.0, *ends], [sizes[0], *sizes], step="pre", color=colour, alpha=0.3)
            axis.step(
                [0.0, *ends], [sizes[0], *sizes], where="pre", color=colour, linestyle="-",
                linewidth=1.2, marker="",
            )  # fmt: skip
            axis.set_title(f"{mode}: {len(steps)} steps, {utilisation(sizes, SLOTS):.0%} at work")
            axis.set_xlim(0, last)
            axis.set_ylim(0, SLOTS + 0.5)
            axis.set_xlabel("seconds")
        axes[0].set_ylabel("sequences in the step")


# ---- one step -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """Steps of a batch, by repetition. bounds: least seconds of one, as probed right before."""

    seconds: list[float]
    bounds: list[float]

    @property
    def bound_s(self) -> float:
        return median_interval(self.bounds).value


def _batch_predictions(costs: CostModel, rates: MachineRates) -> list[Prediction]:
    least = {batch: _step_bound(costs, rates, batch, DEPTH + 8) for batch in (1, 8, 32, 64)}
    how = "bound of a decode step at that batch ÷ at batch 1, both reached to the same share"
    found = []
    for batch in (8, 32, 64):
        slower = least[batch] / least[1]
        found.append(
            Prediction(
                f"slower_{batch}", f"time of a step, batch {batch} ÷ batch 1", slower, "×", how
            )
        )  # fmt: skip
    found.append(
        Prediction(
            "throughput_32",
            "tokens per second, batch 32 ÷ batch 1",
            32 * least[1] / least[32],
            "×",
            how,
        )
    )
    found.append(
        Prediction(
            "share_1",
            "share of the bound that a step of batch 1 reaches",
            1.0,
            "share",
            "no step can beat its bound; probed before every round",
            kind=Sense.AT_MOST,
            tolerance=1.1,
        )
    )
    return found


def _step_bound(costs: CostModel, rates: MachineRates, batch: int, context: int) -> float:
    return bound(costs.step([Chunk(1, context)] * batch), rates).bound_s


def _measure_steps(lab: Lab, repetitions: int) -> dict[int, _Step]:
    """All batches in turns, so that a slow minute hits all of them."""
    most = max(BATCHES)
    options = EngineOptions(
        max_model_len=256,
        max_num_seqs=most,
        max_num_batched_tokens=most * DEPTH,
        num_threads=lab.threads,
    )
    engine, costs = build_engine(lab.open(), options), lab.costs()
    seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    bounds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for number in range(1 + repetitions):
        rates = lab.rates()
        for batch in BATCHES:
            if batch == 1:
                sample = run_case(engine, Case(Kind.DECODE, 0, 24, depth=DEPTH))
                each, context = sample.seconds / 24, DEPTH + 12
            else:
                sample = run_case(engine, Case(Kind.BATCH, DEPTH, 24, batch=batch))
                each = sample.decode_s / sample.num_decode_steps
                context = sample.decode_start + sample.num_decode_steps // 2 + 1
            if number:
                seconds[batch].append(each)
                bounds[batch].append(_step_bound(costs, rates, batch, context))
        lab.tell("steps of growing batches", number / repetitions)
    return {b: _Step(seconds[b], bounds[b]) for b in BATCHES}


def _report_steps(lab: Lab, steps: dict[int, _Step], found: Findings) -> None:
    single = steps[1]
    slower = {b: ratio_interval(s.seconds, single.seconds) for b, s in steps.items()}
    more = {b: ratio_interval([b * x for x in single.seconds], s.seconds) for b, s in steps.items()}
    shares = {b: ratio_interval(s.bounds, s.seconds) for b, s in steps.items()}
    for batch in (8, 32, 64):
        found.measured[f"slower_{batch}"] = slower[batch]
    found.measured["throughput_32"] = more[32]
    found.measured["share_1"] = shares[1]
    share = shares[1].value
    found.tables.append(
        Table(
            "steps",
            [
                "batch",
                "step ms",
                "low",
                "high",
                "bound ms",
                "bound ÷ share of batch 1, ms",
                "of the bound",
                "tok/s",
                "tokens ×",
                "latency ×",
            ],
            [
                [
                    b,
                    *(_ms(x) for x in median_interval(s.seconds).ends),
                    _ms(s.bound_s),
                    _ms(s.bound_s / share),
                    f"{shares[b].value:.0%}",
                    round(b / median_interval(s.seconds).value),
                    round(more[b].value, 2),
                    round(slower[b].value, 2),
                ]
                for b, s in steps.items()
            ],
            f"Decode steps at {DEPTH} … {DEPTH + 24} positions, {len(single.seconds)} runs of 24 "
            f"steps each; low, high: {median_interval(single.seconds).what}. Latency and tokens "
            f"against batch 1, measured in turns.",
        )
    )
    late, gain = slower[32], more[32]
    both = late.low > 1 and gain.low > 1
    found.conclude(
        f"At batch 32 each token comes {late:.1f} times as late as alone, and {gain:.1f} times as "
        f"many come per second{': latency worse, throughput better' if both else ''}.",
        both,
    )
    _draw_steps(lab, steps, share)


def _draw_steps(lab: Lab, steps: dict[int, _Step], share: float) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    batches = list(steps)
    middle = [median_interval(steps[b].seconds) for b in batches]
    with lab.figure(
        "steps",
        "A decode step and what it yields, by batch: measured, the bound, and the bound ÷ the "
        "share of it that batch 1 reached.",
        "Left: milliseconds of a step over the batch; right: tokens per second over the batch; "
        "measured, the bound, and the bound at the share that batch 1 reached.",
        columns=2,
    ) as (_, axes):
        for axis, number in ((axes[0], 1e3), (axes[1], None)):

            def shown(batch: int, seconds: float, factor: float | None = number) -> float:
                return batch / seconds if factor is None else factor * seconds

            points = [shown(b, i.value) for b, i in zip(batches, middle, strict=True)]
            ends = [
                sorted((shown(b, i.low), shown(b, i.high)))
                for b, i in zip(batches, middle, strict=True)
            ]
            errors = [
                [p - low for p, (low, _) in zip(points, ends, strict=True)],
                [high - p for p, (_, high) in zip(points, ends, strict=True)],
            ]
            axis.errorbar(batches, points, yerr=errors, label="measured", **style(0))
            least = [shown(b, steps[b].bound_s) for b in batches]
            likely = [shown(b, steps[b].bound_s / share) for b in batches]
            axis.plot(batches, likely, label="bound ÷ share at batch 1", **style(1))
            axis.plot(batches, least, label="bound", **style(2))
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_xticks(batches, [str(b) for b in batches])
            axis.set_xlabel("batch")
        axes[0].set_title("latency")
        axes[0].set_ylabel("ms per step = per token of each request")
        axes[1].set_title("throughput")
        axes[1].set_ylabel("tokens per second")
        axes[0].legend()


# ---- small things -------------------------------------------------------------------------------


def _engine(lab: Lab, mode: str) -> Engine:
    """A step has room for all prompts that enter together, so that steps can be counted."""
    return build_engine(
        lab.open(),
        EngineOptions(
            max_model_len=1024,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=1024,
            batching=mode,
            enable_prefix_caching=False,
            num_threads=lab.threads,
        ),
    )


def _serve(lab: Lab, engine: Engine, work: Plan) -> Served:
    longest = max(job.num_prompt for job in work.jobs)
    text = lab.english(longest + 7 * len(work.jobs))
    prompts = [text[7 * i : 7 * i + longest] for i in range(len(work.jobs))]
    return serve_backlog(engine, prompts, work.jobs)


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent))


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)
