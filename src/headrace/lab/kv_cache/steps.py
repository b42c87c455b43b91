"""Single steps over the length of the history, cached and not: bounds, times, growth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import GREEDY, run_case
from headrace.engine.config import EngineOptions
from headrace.engine.core import Engine
from headrace.engine.model import OpenModel, build_engine
from headrace.lab.lab import Lab
from headrace.lab.plots import error_bars, style
from headrace.lab.statistics import (
    Interval,
    fit_line,
    fit_power,
    median_interval,
    ratio_interval,
)
from headrace.lab.values import Findings, Table, milliseconds
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk

#: Positions in the history when a step is timed.
LENGTHS = (64, 128, 256, 512, 1024, 2048)
#: Growth is fitted from here on: below, what a step costs whatever its length hides it.
FIT_FROM = 256
PATHS = ("cached", "no cache")


def bound_s(costs: CostModel, rates: MachineRates, path: str, history: int) -> float:
    """Least seconds of a step that has `history` positions when it ends."""
    num_new = 1 if path == "cached" else history
    return bound(costs.step([Chunk(num_new, history)]), rates).bound_s


def totals(lengths: Sequence[int], step_s: Sequence[float]) -> list[float]:
    """Seconds until each length is reached from nothing, a step per position: the steps between
    the measured lengths are taken to lie on straight lines."""
    spans = [lengths[0], *(b - a for a, b in itertools.pairwise(lengths))]
    means = [step_s[0], *((a + b) / 2 for a, b in itertools.pairwise(step_s))]
    return list(itertools.accumulate(n * s for n, s in zip(spans, means, strict=True)))


@dataclass(frozen=True, slots=True)
class Steps:
    """By length, by repetition: seconds. bounds: of the cached step, by length."""

    lengths: list[int]
    prefill: list[list[float]]
    cached: list[list[float]]
    anew: list[list[float]]
    bounds: list[float]


def lengths_of(model: OpenModel) -> list[int]:
    """LENGTHS that the model has room for."""
    return [s for s in LENGTHS if s + 32 <= model.program.max_context]


def engines_of(lab: Lab) -> dict[str, Engine]:
    """One for each path, with room for the longest."""
    longest = lengths_of(lab.open())[-1] + 32

    def engine(allocator: str) -> Engine:
        options = EngineOptions(
            max_model_len=longest,
            max_num_seqs=1,
            kv_allocator=allocator,
            num_threads=lab.threads,
        )
        return build_engine(lab.open(), options)

    return {"cached": engine("paged"), "no cache": engine("none")}


def measure_steps(lab: Lab, engines: Mapping[str, Engine], repetitions: int) -> Steps:
    """All lengths and paths in every repetition, after one that warms up."""
    lengths, costs = lengths_of(lab.open()), lab.costs()
    ids = lab.english(lengths[-1] + 32)
    found = Steps(lengths, [[] for _ in lengths], [[] for _ in lengths], [[] for _ in lengths], [])
    for number in range(1 + repetitions):  # the first warms up
        for i, length in enumerate(lengths):
            prefill = run_case(engines["cached"], Case(Kind.PREFILL, length, 0)).seconds
            decode = run_case(engines["cached"], Case(Kind.DECODE, 0, 16, depth=length))
            anew = _step_anew(engines["no cache"], ids[:length])
            if number:
                found.prefill[i].append(prefill)
                found.cached[i].append(decode.seconds / 16)
                found.anew[i].append(anew)
        lab.tell("steps at growing lengths", number / repetitions)
    rates = lab.rates()
    found.bounds.extend(bound_s(costs, rates, "cached", s + 8) for s in lengths)
    return found


def _step_anew(engine: Engine, ids: list[int]) -> float:
    """Seconds of one uncached step: the second one, as the first is the prefill."""
    engine.add(ids[:-1], GREEDY.replace(max_tokens=2))
    engine.step()
    begin = perf_counter()
    engine.step()
    seconds = perf_counter() - begin
    assert not engine.has_work
    return seconds


def report_steps(lab: Lab, steps: Steps, found: Findings) -> None:
    """Adds the table `steps`, what grows how, and the picture."""
    lengths = steps.lengths
    prefill, cached, anew = (
        [median_interval(samples) for samples in kind]
        for kind in (steps.prefill, steps.cached, steps.anew)
    )
    anew_runs, cached_runs = (list(zip(*kind, strict=True)) for kind in (steps.anew, steps.cached))
    step_growth = growth(lengths, anew_runs)
    total_growth = growth(lengths, [totals(lengths, run) for run in anew_runs])
    cached_growth = growth(lengths, [totals(lengths, run) for run in cached_runs])
    slope = _of_runs([fit_line(lengths, run)[0].value for run in cached_runs])
    grown = ratio_interval(steps.cached[-1], steps.cached[0])
    found.measured |= {
        "decode_ms": cached[-1].scaled(1e3),
        "step_exponent": step_growth,
        "total_exponent": total_growth,
        "grown": grown,
        "cached_total_exponent": cached_growth,
    }
    found.tables.append(
        Table(
            "steps",
            [
                "positions",
                "prefill ms",
                "cached ms/token",
                "low",
                "high",
                "bound ms",
                "no cache ms/token",
                "low ",
                "high ",
                "ratio",
            ],
            [
                [
                    s,
                    milliseconds(prefill[i].value),
                    *(milliseconds(v) for v in cached[i].ends),
                    milliseconds(steps.bounds[i]),
                    *(milliseconds(v) for v in anew[i].ends),
                    round(anew[i].value / cached[i].value, 1),
                ]
                for i, s in enumerate(lengths)
            ],
            f"One sequence. {cached[0].n} runs in turns; low, high: {cached[0].what}. An uncached "
            f"step is a prefill of the whole history.",
        )
    )
    found.conclude(
        f"A cached step takes {slope.scaled(1e9):.0f} ns longer per position: {grown:.2f} times as "
        f"long at {lengths[-1]:,} positions as at {lengths[0]:,}.",
        slope.low > 0 and grown.low > 1,
    )
    found.conclude(
        f"Between {FIT_FROM} and {lengths[-1]:,} tokens an answer's time, summed from these steps, "
        f"grows as length^{cached_growth:.2f} with the cache and as length^{total_growth:.2f} "
        f"without.",
        cached_growth.high < total_growth.low,
    )
    _draw_steps(lab, steps, {"cached": cached_growth.value, "no cache": total_growth.value})


def growth(lengths: Sequence[int], runs: Sequence[Sequence[float]]) -> Interval:
    """Exponent of a power law from FIT_FROM on. Each run is fitted by itself: lengths of one run
    share its minute, and the bend of the curve, which the prediction has too, is no error."""
    fitted = [i for i, s in enumerate(lengths) if s >= FIT_FROM]
    x = [lengths[i] for i in fitted]
    return _of_runs([fit_power(x, [run[i] for i in fitted]).exponent.value for run in runs])


def _of_runs(values: Sequence[float]) -> Interval:
    found = median_interval(values)
    return replace(found, what=f"fits of single runs, {found.what}")


def _draw_steps(lab: Lab, steps: Steps, growths: Mapping[str, float]) -> None:
    lengths = steps.lengths
    middles = {
        path: [median_interval(samples).value for samples in kind]
        for path, kind in (("no cache", steps.anew), ("cached", steps.cached))
    }
    slope, start = fit_line(lengths, middles["cached"])
    with lab.figure(
        "steps",
        "One step, and a whole answer, by length. Dashed: constant + linear through the cached "
        "steps, power laws through the rest.",
        "Left: milliseconds per step over positions, with the cache, without it, and of a prefill. "
        "Right: seconds until that many tokens, with the cache and without it.",
        columns=2,
    ) as (_, axes):
        for number, (label, kind) in enumerate(
            (("no cache", steps.anew), ("cached", steps.cached), ("prefill", steps.prefill))
        ):
            middle = [median_interval(samples).scaled(1e3) for samples in kind]
            look = style(number) | {"linestyle": ":" if label == "prefill" else "-"}
            axes[0].errorbar(
                lengths, [i.value for i in middle], yerr=error_bars(middle), label=label, **look
            )
        line = [1e3 * (start + slope.value * s) for s in lengths]
        axes[0].plot(lengths, line, "--", color="#555555", linewidth=1.0, marker="")
        axes[0].set_ylabel("ms per step")
        x = [s for s in lengths if s >= FIT_FROM]
        for number, path in enumerate(("no cache", "cached")):
            look = style(number) | {"linestyle": "-"}
            whole = totals(lengths, middles[path])
            axes[1].plot(lengths, whole, label=path, **look)
            fit = fit_power(x, whole[-len(x) :])
            axes[1].plot(x, [fit.at(s) for s in x], "--", color="#555555", linewidth=1.0, marker="")
            axes[1].annotate(
                f"length^{growths[path]:.2f}", (x[-1], fit.at(x[-1])), xytext=(-8, 6),
                textcoords="offset points", ha="right",
            )  # fmt: skip
        axes[1].set_ylabel("seconds until that many tokens")
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(lengths, [str(s) for s in lengths])
            axis.minorticks_off()
            axis.set_xlabel("positions")
        axes[0].legend()
