"""One decode step over the batch: what its bound predicts, what it takes, what it yields. Knows no
trace.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import run_case
from headrace.engine.config import EngineOptions
from headrace.engine.model import build_engine
from headrace.lab.lab import Lab
from headrace.lab.plots import error_bars, style
from headrace.lab.statistics import Interval, exact, median_interval, ratio_interval
from headrace.lab.values import Findings, Prediction, Table, milliseconds
from headrace.lab.values import Kind as Sense
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk

#: Batches whose steps are timed, and positions in the cache at their start.
BATCHES = (1, 2, 4, 8, 16, 32, 64)
DEPTH = 32


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a batch, by repetition. bounds: least seconds of one, as probed right before."""

    seconds: list[float]
    bounds: list[float]

    @property
    def bound_s(self) -> float:
        return median_interval(self.bounds).value


def batch_predictions(costs: CostModel, rates: MachineRates) -> list[Prediction]:
    """Latency and throughput of a step against batch 1, from bounds alone."""
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


def measure_steps(lab: Lab, repetitions: int) -> dict[int, Steps]:
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
    return {b: Steps(seconds[b], bounds[b]) for b in BATCHES}


def report_steps(lab: Lab, steps: dict[int, Steps], found: Findings) -> None:
    """Adds the table `steps`, what a larger batch costs and yields, and the picture."""
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
                    *(milliseconds(x) for x in median_interval(s.seconds).ends),
                    milliseconds(s.bound_s),
                    milliseconds(s.bound_s / share),
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


def _draw_steps(lab: Lab, steps: dict[int, Steps], share: float) -> None:
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
        for axis, seconds_of in ((axes[0], True), (axes[1], False)):

            def shown(batch: int, seconds: Interval, latency: bool = seconds_of) -> Interval:
                return seconds.scaled(1e3) if latency else exact(batch).over(seconds)

            points = [shown(b, i) for b, i in zip(batches, middle, strict=True)]
            axis.errorbar(
                batches, [i.value for i in points], yerr=error_bars(points), label="measured",
                **style(0),
            )  # fmt: skip
            for label, factor, number in (
                ("bound ÷ share at batch 1", share, 1),
                ("bound", 1.0, 2),
            ):
                limits = [shown(b, exact(steps[b].bound_s / factor)).value for b in batches]
                axis.plot(batches, limits, label=label, **style(number))
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
