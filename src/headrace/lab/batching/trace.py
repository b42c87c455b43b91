"""The trace served with static and with continuous batching: throughput, time to first token, slots
at work. Knows no other batch than that of the trace, and no bounds.
"""

from __future__ import annotations

import numpy as np

from headrace.lab.batching.workload import (
    MODES,
    SLOTS,
    Plan,
    engine_of,
    percentile,
    serve_plan,
)
from headrace.lab.lab import Lab
from headrace.lab.parts.served import Served
from headrace.lab.parts.traces import utilisation
from headrace.lab.plots import style
from headrace.lab.statistics import exact, median_interval, ratio_interval
from headrace.lab.values import Findings, Table


def measure_trace(lab: Lab, work: Plan, repetitions: int) -> dict[str, list[Served]]:
    """By mode: its runs, in turns with those of the other."""
    engines = {mode: engine_of(lab, mode) for mode in MODES}
    runs: dict[str, list[Served]] = {mode: [] for mode in MODES}
    for number in range(1 + repetitions):  # the first warms up
        for mode, engine in engines.items():
            run = serve_plan(lab, engine, work)
            if number:
                runs[mode].append(run)
        lab.tell("the trace, static and continuous in turns", number / repetitions)
    return runs


def report_trace(lab: Lab, work: Plan, runs: dict[str, list[Served]], found: Findings) -> None:
    """Adds the table `trace`, what filling the slots gains, and the picture."""
    seconds = {mode: [run.seconds for run in runs[mode]] for mode in MODES}
    rates = {
        mode: median_interval([run.num_output_tokens / run.seconds for run in runs[mode]])
        for mode in MODES
    }
    late = {
        (mode, p): median_interval([percentile(run.ttft_s, p) for run in runs[mode]])
        for mode in MODES
        for p in (50, 99)
    }
    for mode in MODES:
        steps = [step.num_seqs for step in runs[mode][0].steps]
        found.measured[f"utilisation_{mode}"] = exact(utilisation(steps, SLOTS))
    gain = ratio_interval(seconds["static"], seconds["continuous"])
    found.measured["gain"] = gain
    sooner = found.measured["ttft_gain"] = ratio_interval(
        *([percentile(run.ttft_s, 50) for run in runs[mode]] for mode in MODES)
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
                for mode in MODES
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
        last = max(runs[mode][0].seconds for mode in MODES)
        for number, mode in enumerate(MODES):
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
