"""What follows from the cells: growth with the length, ratios, the table and the picture.

Knows what was measured, nothing of how.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from headrace.lab.attention.measurement import CellsByWay
from headrace.lab.attention.problems import AT, FIT_FROM, LENGTHS, problem_of, ways
from headrace.lab.lab import Lab
from headrace.lab.plots import error_bars, style
from headrace.lab.statistics import (
    Interval,
    fit_power,
    largest,
    median_interval,
    ratio_interval,
    resolved,
)
from headrace.lab.values import Findings, Table
from headrace.ops.kv import KVFormat


def report(lab: Lab, cells: CellsByWay, found: Findings) -> None:
    times, sizes = growths_of(cells, "seconds"), growths_of(cells, "peaks")
    for way in ways():
        if way.format is KVFormat.F32:
            for key, growths in (("time", times), ("memory", sizes)):
                if way.name in growths:
                    found.measured[f"{key}_{way.kind}"] = growths[way.name]
        for s in LENGTHS:
            if s not in cells[way.name]:
                found.notes.append(f"{way.name}, S = {s}: left out, memory was too short.")
    found.tables.append(table_of(lab, cells))
    at = {name: own[AT].seconds for name, own in cells.items() if AT in own}
    if "naive" in at and "tiled" in at:
        slower = found.measured["slower"] = ratio_interval(at["naive"], at["tiled"])
        found.conclude(
            f"At S = {AT:,} naive attention took {slower:.1f} times as long as tiled, in float32.",
            slower.low > 1 or slower.high < 1,
        )
    if "SDPA" in at and "tiled" in at:
        other = ratio_interval(at["SDPA"], at["tiled"])
        found.conclude(
            f"torch's SDPA took {other:.2f} times as long as our kernel at S = {AT:,} in float32.",
            other.low > 1 or other.high < 1,
        )
    for what, growths in (("Memory", sizes), ("Time", times)):
        if "naive" in growths and "tiled" in growths:
            one, two = growths["naive"], growths["tiled"]
            found.conclude(
                f"{what} grows as S^{one:.2f} naive and S^{two:.2f} tiled, from {FIT_FROM:,} to "
                f"{LENGTHS[-1]:,}"
                + ("." if resolved(one, two) else ": which grows faster is open."),
                resolved(one, two),
            )
    worst = {
        way: largest(error for own in cells[way.name].values() for error in own.errors)
        for way in ways()
    }
    told = ", ".join(f"{way.name} {error:.1e}" for way, error in worst.items())
    found.conclude(f"Largest error from float64 ÷ largest result at all these lengths: {told}.")
    draw(cells, times, sizes, lab)


def growths_of(cells: CellsByWay, what: str) -> dict[str, Interval]:
    """By way: the exponent of a power law from FIT_FROM on, each round fitted by itself. A way with
    fewer than two such lengths is left out."""
    growths = {}
    for name, own in cells.items():
        x = [s for s in own if s >= FIT_FROM]
        if len(x) > 1:
            rounds = zip(*(getattr(own[s], what) for s in x), strict=True)
            growths[name] = median_interval([fit_power(x, y).exponent.value for y in rounds])
    return growths


def table_of(lab: Lab, cells: CellsByWay) -> Table:
    rows: list[list[str | float | int | None]] = []
    interval = None
    for way in ways():
        for s in LENGTHS:
            own = cells[way.name].get(s)
            if own is None:
                rows.append([way.name, s, *[None] * 6])
                continue
            interval = median_interval(own.seconds)
            rows.append(
                [
                    way.name,
                    s,
                    *(round(1e3 * v, 3) for v in interval.ends),
                    round(median(own.peaks) / 2**20, 2),
                    round(problem_of(lab, s).peak_bytes(way) / 2**20, 2),
                    float(f"{largest(own.errors):.2g}"),
                ]
            )
    return Table(
        "cells",
        ["attention", "S", "ms", "low", "high", "peak MiB", "needed MiB", "error"],
        rows,
        f"One sequence, {problem_of(lab, 1).heads} heads of 64, causal, {lab.threads} threads. "
        f"Low, high: {interval.what if interval else 'none'}, over "
        f"{interval.n if interval else 0} rounds, each the median call of a fresh "
        f"process. Peak: highest resident memory beside the inputs, to about 1 MiB; needed: what "
        f"the formula says. Error: largest |Δ| from float64 ÷ largest result.",
    )


def draw(
    cells: CellsByWay, times: Mapping[str, Interval], sizes: Mapping[str, Interval], lab: Lab
) -> None:
    with lab.figure(
        "growth",
        "Time and peak memory of one attention over length, with the exponents fitted from "
        f"S = {FIT_FROM} on.",
        "Left: milliseconds over length by way of computing; right: peak memory over length. The "
        "legends name the fitted exponents.",
        columns=2,
    ) as (_, axes):
        for number, way in enumerate(ways()):
            own = cells[way.name]
            x, seconds = list(own), [median_interval(c.seconds).scaled(1e3) for c in own.values()]
            axes[0].errorbar(
                x,
                [i.value for i in seconds],
                yerr=error_bars(seconds),
                label=_label(way.name, times),
                **style(number),
            )
            axes[1].plot(
                x,
                [max(median(c.peaks), 1 << 16) / 2**20 for c in own.values()],
                label=_label(way.name, sizes),
                **style(number),
            )
        axes[0].set_ylabel("ms")
        axes[1].set_ylabel("peak MiB beside the inputs")
        for axis in axes:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(LENGTHS, [str(s) for s in LENGTHS])
            axis.set_xlabel("S, positions")
            axis.legend(fontsize=8)


def _label(name: str, growths: Mapping[str, Interval]) -> str:
    return f"{name}: S^{growths[name].value:.2f}" if name in growths else name
