"""attention: the same numbers with and without materialised scores; time and memory over length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.memory import FreshProcesses
from headrace.lab.plots import style
from headrace.lab.statistics import (
    Interval,
    PowerFit,
    exact,
    fit_power,
    median_interval,
    resolved,
)
from headrace.lab.values import Check, Findings, Kind, Prediction, Table
from headrace.limits.rates import MachineRates
from headrace.ops.counts import visible_pairs
from headrace.ops.kv import KVFormat
from headrace.verify.exact import chunked
from headrace.verify.result import RungResult
from headrace.verify.subject import Subject

if TYPE_CHECKING:
    from headrace.lab.parts.attention_cells import Cell, Problem, Way

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
    quick_s, full_s = 60.0, 300.0
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
                "each written and read once at the read bandwidth",
                Kind.AT_LEAST,
                tolerance=1.1,
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
            subject = lab.subject()
            checks.append(_rung("whole = chunked", chunked, subject))
            from headrace.verify.op_by_op import op_by_op

            checks.append(_rung("op by op", op_by_op, subject))
        return checks

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        found = Findings()
        with FreshProcesses(["headrace.lab.parts.attention_cells"]) as fresh:
            with lab.stage("cells", 0.85):
                cells = dict(_cells(lab, fresh, 3 if lab.quick else 7))
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


def _rung(name: str, rung: Callable[[Subject], RungResult], subject: Subject) -> Check:
    """A rung of the ladder as a check; one that raises has failed."""
    try:
        result = rung(subject)
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")
    told = f"max |Δ| {result.max_abs_error:.3g}, bound {result.bound:.3g}; {result.detail}"
    return Check(name, result.passed, told)


# ---- cells --------------------------------------------------------------------------------------


def _cells(
    lab: Lab, fresh: FreshProcesses, repetitions: int
) -> Iterator[tuple[tuple[str, int], Cell | None]]:
    """By (way, length), short ones first; None where there was no memory for it."""
    from headrace.lab.parts.attention_cells import run_cell

    done, work = 0.0, float(sum(s * s for s in LENGTHS))
    for length in LENGTHS:
        for way in _ways():
            lab.tell(f"{way.name}, S = {length}", done / work)
            cell = run_cell(
                fresh, way, _problem(lab, length), threads=lab.threads, repetitions=repetitions
            )
            yield (way.name, length), cell
        done += length * length


def _measure_told(lab: Lab, fresh: FreshProcesses, found: Findings) -> None:
    from headrace.lab.parts.attention_cells import run_cell

    batch, heads, length = _TOLD
    problem = _new_problem(length, heads, batch)
    rows: list[list[str | float | int | None]] = []
    held = {}
    for key, way in zip(("told_naive", "told_tiled"), _told_ways(), strict=True):
        cell = run_cell(fresh, way, problem, threads=lab.threads, repetitions=1)
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


def _report(lab: Lab, cells: Mapping[tuple[str, int], Cell | None], found: Findings) -> None:
    times: dict[str, PowerFit] = {}
    sizes: dict[str, PowerFit] = {}
    for way in _ways():
        there = [(s, c) for s in LENGTHS if (c := cells[way.name, s]) is not None]
        fitted = [(s, c) for s, c in there if s >= FIT_FROM]
        calls = [(s, seconds) for s, c in fitted for seconds in c.seconds]
        times[way.name] = fit_power(*zip(*calls, strict=True))
        sizes[way.name] = fit_power(
            [s for s, _ in fitted], [float(c.peak_bytes) for _, c in fitted]
        )
        if way.format is KVFormat.F32:
            found.measured[f"time_{way.kind}"] = times[way.name].exponent
            found.measured[f"memory_{way.kind}"] = sizes[way.name].exponent
        for s in LENGTHS:
            if cells[way.name, s] is None:
                found.notes.append(f"{way.name}, S = {s}: left out, memory was too short.")
    found.tables.append(_table(lab, cells))
    naive, tiled, sdpa = (_seconds(cells, name, _AT) for name in ("naive", "tiled", "SDPA"))
    if naive is not None and tiled is not None:
        slower = _ratio(naive, tiled)
        found.measured["slower"] = slower
        found.conclude(
            f"At S = {_AT:,} naive attention took {slower.value:.1f}× as long as tiled "
            f"({slower.low:.1f} … {slower.high:.1f}), same numbers in float32.",
            resolved(naive, tiled),
        )
    if tiled is not None and sdpa is not None:
        other = _ratio(sdpa, tiled)
        found.conclude(
            f"torch's SDPA took {other.value:.2f}× as long as our kernel ({other.low:.2f} … "
            f"{other.high:.2f}) at S = {_AT:,} in float32.",
            resolved(sdpa, tiled),
        )
    quadratic, linear = sizes["naive"].exponent, sizes["tiled"].exponent
    found.conclude(
        f"Memory grows as S^{quadratic.value:.2f} ({quadratic.low:.2f} … {quadratic.high:.2f}) "
        f"naive and S^{linear.value:.2f} ({linear.low:.2f} … {linear.high:.2f}) tiled.",
        resolved(quadratic, linear),
    )
    slow, quick = times["naive"].exponent, times["tiled"].exponent
    found.conclude(
        f"Time grows as S^{slow.value:.2f} ({slow.low:.2f} … {slow.high:.2f}) naive and "
        f"S^{quick.value:.2f} ({quick.low:.2f} … {quick.high:.2f}) tiled, from {FIT_FROM} on.",
        resolved(slow, quick),
    )
    _draw(cells, times, sizes, lab)


def _table(lab: Lab, cells: Mapping[tuple[str, int], Cell | None]) -> Table:
    rows: list[list[str | float | int | None]] = []
    numbers: list[int] = []
    for way in _ways():
        for s in LENGTHS:
            cell = cells[way.name, s]
            if cell is None:
                rows.append([way.name, s, *[None] * 6])
                continue
            seconds = median_interval(cell.seconds)
            numbers.append(seconds.n)
            rows.append(
                [
                    way.name,
                    s,
                    *(round(1e3 * v, 3) for v in (seconds.value, seconds.low, seconds.high)),
                    round(cell.peak_bytes / 2**20, 2),
                    round(_problem(lab, s).peak_bytes(way) / 2**20, 2),
                    float(f"{cell.error:.2g}"),
                ]
            )
    return Table(
        "cells",
        ["attention", "S", "ms", "low", "high", "peak MiB", "needed MiB", "error"],
        rows,
        f"One sequence, {_problem(lab, 1).heads} heads of 64, causal, {lab.threads} threads; "
        f"{min(numbers, default=0)} … {max(numbers, default=0)} calls, median; low, high: range of "
        f"few, 95 % interval of six or more. Peak: highest resident memory of a fresh process "
        f"beside the inputs, to about 1 MiB; needed: what the formula says. Error: largest "
        f"|Δ| from float64 ÷ largest result.",
    )


def _draw(
    cells: Mapping[tuple[str, int], Cell | None],
    times: Mapping[str, PowerFit],
    sizes: Mapping[str, PowerFit],
    lab: Lab,
) -> None:
    with lab.figure(
        "growth",
        "Time and peak memory of one attention over length, with the exponents fitted from "
        f"S = {FIT_FROM} on.",
        "All ways take time like S squared; the naive one also takes memory like S squared, the "
        "others like S.",
        columns=2,
    ) as (_, axes):
        for number, way in enumerate(_ways()):
            there = [(s, c) for s in LENGTHS if (c := cells[way.name, s]) is not None]
            x = [s for s, _ in there]
            seconds = [median_interval(c.seconds) for _, c in there]
            axes[0].errorbar(
                x,
                [1e3 * i.value for i in seconds],
                yerr=[
                    [1e3 * (i.value - i.low) for i in seconds],
                    [1e3 * (i.high - i.value) for i in seconds],
                ],
                label=f"{way.name}: S^{times[way.name].exponent.value:.2f}",
                **style(number),
            )
            axes[1].plot(
                x,
                [max(c.peak_bytes, 1 << 16) / 2**20 for _, c in there],
                label=f"{way.name}: S^{sizes[way.name].exponent.value:.2f}",
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


# ---- small things -------------------------------------------------------------------------------


def _seconds(
    cells: Mapping[tuple[str, int], Cell | None], name: str, length: int
) -> Interval | None:
    cell = cells[name, length]
    return None if cell is None else median_interval(cell.seconds)


def _ratio(over: Interval, under: Interval) -> Interval:
    """Of two that were not measured in turns: as far apart as their ends allow."""
    return Interval(
        over.value / under.value,
        over.low / under.high,
        over.high / under.low,
        min(over.n, under.n),
        "ratio of medians, ends of both ranges",
    )
