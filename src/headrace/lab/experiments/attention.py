"""attention: the same numbers with and without materialised scores; time and memory over length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.memory import FreshProcesses
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.plots import style
from headrace.lab.statistics import (
    Interval,
    exact,
    fit_power,
    largest,
    median_interval,
    ratio_interval,
    resolved,
)
from headrace.lab.values import Check, Findings, Kind, Prediction, Table
from headrace.limits.rates import MachineRates
from headrace.ops.counts import visible_pairs
from headrace.ops.kv import KVFormat

if TYPE_CHECKING:
    from headrace.lab.parts.attention_cells import Problem, Way

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
#: Growth is fitted from here on: below, fixed costs weigh.
FIT_FROM = 1024
_HEADS_QUICK, _HEADS = 4, 12
#: Where times of the ways are compared, and memory at the longest.
_AT = 4096
#: Lengths that are checked: one tile, an awkward one, several tiles.
_CHECKED = (64, 203, 640, 1024)
#: Batch 4, 12 heads, 2,048 positions, two bytes: what people are told naive and tiled hold.
_TOLD = (4, 12, 2048)
#: (name, kind, format), see attention_cells.
_WAYS = (
    ("naive", "naive", KVFormat.F32),
    ("tiled", "tiled", KVFormat.F32),
    ("SDPA", "sdpa", KVFormat.F32),
    ("tiled, bf16 KV", "tiled", KVFormat.BF16),
    ("SDPA, bf16", "sdpa", KVFormat.BF16),
)


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
            for way in _ways()
            if way.format is KVFormat.F32
        ]
        for way in _ways():
            if way.format is KVFormat.F32:
                sizes = [float(_problem(lab, s).peak_bytes(way)) for s in fitted]
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
                f"time of naive ÷ tiled, float32, S = {_AT}",
                _least_ratio(_problem(lab, _AT), lab.rates()),
                "×",
                "twice the operations (nothing masked is skipped), and scores and probabilities "
                "each written and read once at the read bandwidth; both as near to their peak",
                tolerance=1.5,
            )
        )
        batch, heads, length = _TOLD
        naive, tiled = _told_ways()
        for key, way in (("told_naive", naive), ("told_tiled", tiled)):
            problem = _new_problem(length, heads, batch)
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
            checks = [_close(lab, length) for length in _CHECKED]
        with lab.stage("the kernel inside a model", 0.7):
            return checks + rung_checks(lab.subject(), ["whole = chunked", "op by op"])

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        with FreshProcesses(["headrace.lab.parts.attention_cells"]) as fresh:
            with lab.stage("cells", 0.85):
                cells = _measure(lab, fresh, 5 if lab.quick else 7)
            with lab.stage("what people are told", 0.15):
                _measure_told(lab, fresh, found)
        _report(lab, cells, found)
        return found


# ---- what there is to compute -------------------------------------------------------------------


def _ways() -> list[Way]:
    from headrace.lab.parts.attention_cells import Way

    return [Way(*fields) for fields in _WAYS]


def _told_ways() -> tuple[Way, Way]:
    from headrace.lab.parts.attention_cells import Way

    naive = Way("naive, bf16", "naive", KVFormat.BF16)
    return naive, Way("tiled, bf16 KV", "tiled", KVFormat.BF16)


def _new_problem(length: int, heads: int, batch: int = 1) -> Problem:
    from headrace.lab.parts.attention_cells import Problem

    return Problem(length, heads, batch=batch)


def _problem(lab: Lab, length: int) -> Problem:
    return _new_problem(length, _HEADS_QUICK if lab.quick else _HEADS)


def _least_ratio(problem: Problem, rates: MachineRates) -> float:
    """Least time of naive over that of tiled attention: op after op, each at the machine's rates.
    The same peak for both, so that no kernel's choice moves it."""
    pairs = problem.batch * problem.heads * visible_pairs(problem.length, problem.length, None)
    tiled = 4 * pairs * problem.dim / rates.f32_ops_per_s
    traffic = 4 * problem.matrix_bytes(4) / rates.read_bytes_per_s
    return (2 * tiled + traffic) / tiled


# ---- correctness --------------------------------------------------------------------------------


def _close(lab: Lab, length: int) -> Check:
    """Every way's error from float64 is at most twice that of the naive way in the same format,
    plus a rounding of the result."""
    from headrace.lab.parts.attention_cells import Problem, Way, attention, inputs, relative_error

    problem = Problem(length, 3, batch=2)
    qkv = inputs(problem)

    def error(way: Way) -> float:
        return relative_error(problem, qkv, attention(way, problem, qkv, lab.threads))

    passed, told = True, []
    for fmt, rounding in ((KVFormat.F32, 2.0**-24), (KVFormat.BF16, 2.0**-9)):
        plain = error(Way("naive", "naive", fmt))
        told.append(f"{fmt.value}: naive {plain:.1e}")
        for way in _ways():
            if way.format is fmt and way.kind != "naive":
                own = error(way)
                passed &= own <= 2 * plain + rounding
                told.append(f"{way.kind} {own:.1e}")
    return Check(f"S = {length}: equal within rounding", passed, ", ".join(told))


# ---- cells --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Cells:
    """One way at one length, by round: median seconds of a call, highest bytes beside the inputs,
    error from float64."""

    seconds: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


#: By way and length; without those that memory was too short for.
_Found = Mapping[str, Mapping[int, _Cells]]


def _measure(lab: Lab, fresh: FreshProcesses, rounds: int) -> _Found:
    """All cells in every round, short ones first, each in a process of its own: so that a slow
    minute hits all of them, and what one process was given (pages, a core) is drawn anew."""
    from headrace.lab.parts.attention_cells import run_cell

    found: dict[str, dict[int, _Cells]] = {way.name: {} for way in _ways()}
    missing = set[tuple[str, int]]()
    work = float(rounds * sum(s * s for s in LENGTHS))
    done = 0.0
    for _ in range(rounds):
        for length in LENGTHS:
            for way in _ways():
                lab.tell(f"{way.name}, S = {length}", done / work)
                cell = run_cell(fresh, way, _problem(lab, length), threads=lab.threads)
                if cell is None:
                    missing.add((way.name, length))
                    continue
                cells = found[way.name].setdefault(length, _Cells())
                cells.seconds.append(median(cell.seconds))
                cells.peaks.append(float(cell.peak_bytes))
                cells.errors.append(cell.error)
            done += length * length
    return {
        name: {s: cells for s, cells in own.items() if (name, s) not in missing}
        for name, own in found.items()
    }


def _measure_told(lab: Lab, fresh: FreshProcesses, found: Findings) -> None:
    from headrace.lab.parts.attention_cells import run_cell

    batch, heads, length = _TOLD
    problem = _new_problem(length, heads, batch)
    rows: list[list[str | float | int | None]] = []
    held = {}
    for key, way in zip(("told_naive", "told_tiled"), _told_ways(), strict=True):
        cell = run_cell(fresh, way, problem, threads=lab.threads)
        expected = problem.peak_bytes(way) + problem.input_bytes(way)
        if cell is None:
            found.notes.append(f"{way.name}: left out, there is not enough free memory for it.")
            continue
        held[key] = (cell.peak_bytes + problem.input_bytes(way)) / 1e6
        found.measured[key] = exact(held[key], "one call in a fresh process")
        rows.append([way.name, round(expected / 1e6), round(held[key])])
    found.tables.append(
        Table(
            "held",
            ["attention", "predicted MB", "measured MB"],
            rows,
            f"Batch {batch}, {heads} heads of 64, S = {length}, with q, k, v and the result. "
            f"People are told 800 and 60 MB, with everything in two-byte numbers.",
        )
    )
    if len(held) == 2:
        ratio = held["told_naive"] / held["told_tiled"]
        found.conclude(
            f"At batch {batch}, {heads} heads, S = {length} naive attention held "
            f"{held['told_naive']:.0f} MB and tiled {held['told_tiled']:.0f} MB, {ratio:.0f}× less."
        )


def _report(lab: Lab, cells: _Found, found: Findings) -> None:
    times, sizes = _growths(cells, "seconds"), _growths(cells, "peaks")
    for way in _ways():
        if way.format is KVFormat.F32:
            for key, growths in (("time", times), ("memory", sizes)):
                if way.name in growths:
                    found.measured[f"{key}_{way.kind}"] = growths[way.name]
        for s in LENGTHS:
            if s not in cells[way.name]:
                found.notes.append(f"{way.name}, S = {s}: left out, memory was too short.")
    found.tables.append(_table(lab, cells))
    at = {name: own[_AT].seconds for name, own in cells.items() if _AT in own}
    if "naive" in at and "tiled" in at:
        slower = found.measured["slower"] = ratio_interval(at["naive"], at["tiled"])
        found.conclude(
            f"At S = {_AT:,} naive attention took {slower:.1f} times as long as tiled, in float32.",
            slower.low > 1 or slower.high < 1,
        )
    if "SDPA" in at and "tiled" in at:
        other = ratio_interval(at["SDPA"], at["tiled"])
        found.conclude(
            f"torch's SDPA took {other:.2f} times as long as our kernel at S = {_AT:,} in float32.",
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
        for way in _ways()
    }
    told = ", ".join(f"{way.name} {error:.1e}" for way, error in worst.items())
    found.conclude(f"Largest error from float64 ÷ largest result at all these lengths: {told}.")
    _draw(cells, times, sizes, lab)


def _growths(cells: _Found, what: str) -> dict[str, Interval]:
    """By way: the exponent of a power law from FIT_FROM on, each round fitted by itself. A way with
    fewer than two such lengths is left out."""
    growths = {}
    for name, own in cells.items():
        x = [s for s in own if s >= FIT_FROM]
        if len(x) > 1:
            rounds = zip(*(getattr(own[s], what) for s in x), strict=True)
            growths[name] = median_interval([fit_power(x, y).exponent.value for y in rounds])
    return growths


def _table(lab: Lab, cells: _Found) -> Table:
    rows: list[list[str | float | int | None]] = []
    interval = None
    for way in _ways():
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
                    round(_problem(lab, s).peak_bytes(way) / 2**20, 2),
                    float(f"{largest(own.errors):.2g}"),
                ]
            )
    return Table(
        "cells",
        ["attention", "S", "ms", "low", "high", "peak MiB", "needed MiB", "error"],
        rows,
        f"One sequence, {_problem(lab, 1).heads} heads of 64, causal, {lab.threads} threads. "
        f"Low, high: {interval.what if interval else 'none'}, over "
        f"{interval.n if interval else 0} rounds, each the median call of a fresh "
        f"process. Peak: highest resident memory beside the inputs, to about 1 MiB; needed: what "
        f"the formula says. Error: largest |Δ| from float64 ÷ largest result.",
    )


def _draw(
    cells: _Found, times: Mapping[str, Interval], sizes: Mapping[str, Interval], lab: Lab
) -> None:
    with lab.figure(
        "growth",
        "Time and peak memory of one attention over length, with the exponents fitted from "
        f"S = {FIT_FROM} on.",
        "Left: milliseconds over length by way of computing; right: peak memory over length. The "
        "legends name the fitted exponents.",
        columns=2,
    ) as (_, axes):
        for number, way in enumerate(_ways()):
            own = cells[way.name]
            x, seconds = list(own), [median_interval(c.seconds).scaled(1e3) for c in own.values()]
            axes[0].errorbar(
                x,
                [i.value for i in seconds],
                yerr=[[i.value - i.low for i in seconds], [i.high - i.value for i in seconds]],
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
