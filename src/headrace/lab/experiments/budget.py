"""budget: what models need and reach on hardware nobody has bought yet, and on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from headrace.bench.cases import Case, Kind
from headrace.bench.measure import run_case
from headrace.bench.setup import Settings, make_config
from headrace.engine.core import Engine
from headrace.engine.model import native_executor, vocabulary_of
from headrace.lab.experiment import Experiment
from headrace.lab.lab import Lab
from headrace.lab.parts.rungs import rung_checks
from headrace.lab.plots import style
from headrace.lab.statistics import Interval, exact, median_interval, ratio_interval
from headrace.lab.values import Cell, Check, Findings, Prediction, Table
from headrace.lab.values import Kind as Meant
from headrace.limits.plan import Row, ask, plan
from headrace.limits.plan.answer import BudgetTable
from headrace.limits.plan.engines import engines_for
from headrace.limits.plan.formats import main_format
from headrace.limits.plan.hardware import find_hardware
from headrace.limits.plan.local import local_hardware
from headrace.limits.rates import MachineRates
from headrace.limits.workloads import decode_limit

#: Models whose files fit this machine, and four that are planned from their descriptions alone.
PRESENT = ("smollm2-135m", "gemma3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
ABSENT = ("llama-2-13b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b")
_SMALL, _LARGE = "raspberry-pi-5,m4-pro", "rtx-4090,l40s,h100,b200,m4-max"
_CONTEXT, _CONCURRENCY = 4096, (1, 32)
_DRAWN = ("rtx-4090", "l40s", "h100", "b200")
#: Tokens of context at which this machine is timed, and how many are generated there.
_DEPTH, _STEPS = 256, 24
_RUNG = "batch 1 = batch n"
_PAPER = "llama-2-13b, H100, 1,024 positions"


def _published(settings: Sequence[str] = (), formula: str = "paper") -> dict[int, Row]:
    """Llama-2-13B on one H100, as the literature has it: by number of requests."""
    question = ask(
        "llama-2-13b", hardware="h100", context="1024", concurrency="1,64,256", price="2",
        settings=settings, formula=formula,
    )  # fmt: skip
    return {row.concurrency: row for row in plan(question).rows}


class Budget(Experiment):
    """See docs/lab/budget.md."""

    name = "budget"
    title = "The hardware budget table"
    question = "What memory, speed and money does a model take, and on what hardware does it fit?"
    claim = (
        "A step takes at least its bytes ÷ bandwidth: Llama-2-13B on one H100 reaches 125 tok/s "
        "alone and 2,690 with 64 requests; 256 do not fit, but do with 8 KV heads, at 4.9 × the "
        "throughput."
    )
    quick_s = 15.0
    full_s = 40.0
    faults = ("row-swap", "freed-block")
    try_this = (
        "`headrace plan llama-3.1-8b --hardware h100,rtx-4090 --ctx 32k --concurrency 1,8 --why`: "
        "every formula with its numbers.",
        "`headrace plan llama-3.1-70b --hardware h100 --quant q4_k`: what fits after all.",
        "`headrace plan smollm2-135m --calibrate`: estimates for this machine instead of bounds.",
    )

    def predict(self, lab: Lab) -> list[Prediction]:
        bound_s = _bound_s(lab, lab.rates())
        paper, fewer = _published(), _published(("num_kv_heads=8",))
        gain = (fewer[256].total_tok_per_s or 0) / (paper[64].total_tok_per_s or 1)
        how = "closed forms (--formula paper), against the sum over the model's own program"
        return [
            Prediction(
                f"program {number}", f"{_PAPER}: ms per token, {number} at once",
                1e3 * (row.times.tpot_s if row.times else 0.0), "ms", how, tolerance=1.02,
            )
            for number, row in paper.items()
        ] + [
            Prediction(
                "gain", "throughput of 256 requests with 8 KV heads over 64 with 40", gain, "×",
                how, tolerance=1.02,
            ),
            Prediction(
                "local tpot", f"this machine: ms per token at {_DEPTH} positions, batch 1",
                1e3 * bound_s, "ms", "bound at the rates just probed: nothing can be faster",
                Meant.AT_LEAST, tolerance=1.1,
            ),
        ]  # fmt: skip

    def check(self, lab: Lab) -> list[Check]:
        paper, fewer = _published(), _published(("num_kv_heads=8",))
        checks = [_value(*one) for one in _published_values(paper, fewer)]
        checks.append(_grows())
        return checks + rung_checks(lab.subject(), [_RUNG])

    def measure(self, lab: Lab, predicted: Mapping[str, Prediction]) -> Findings:
        findings = Findings()
        default = _published(formula="program")
        for number, row in default.items():
            assert row.times is not None
            findings.measured[f"program {number}"] = exact(1e3 * row.times.tpot_s)
        fewer = _published(("num_kv_heads=8",), "program")
        rates = [fewer[256].total_tok_per_s, default[64].total_tok_per_s]
        findings.measured["gain"] = exact((rates[0] or 0.0) / (rates[1] or 1.0))
        with lab.stage("timing this machine", 0.6):
            seconds, bounds = _timed(lab)
        tpot = findings.measured["local tpot"] = median_interval(seconds).scaled(1e3)
        present, absent = _tables(lab, findings)
        self._conclude(findings, tpot, ratio_interval(bounds, seconds).scaled(100), absent)
        _draw(lab)
        findings.notes.append(
            "Times of hardware that was not measured are bounds at the rates that its maker "
            f"states: what nothing can beat. {len(present) + len(absent)} tables, no weights read."
        )
        return findings

    def _conclude(
        self,
        findings: Findings,
        tpot: Interval,
        share: Interval,
        absent: Sequence[BudgetTable],
    ) -> None:
        findings.conclude(
            f"This machine takes {tpot:.2f} ms per token: {share:.0f} % of what its bandwidth, "
            "probed before each run, allowed.",
            resolved=share.high < 100,
        )
        for table in absent:
            fitting = [r for r in table.rows if r.fits]
            names = sorted({r.hardware.name for r in fitting if r.concurrency == _CONCURRENCY[-1]})
            findings.conclude(
                f"{table.question.model.name} in {main_format(table.question.model.program).name} "
                f"with {_CONCURRENCY[-1]} requests of {_CONTEXT:,} positions fits: "
                f"{', '.join(names) or 'none of those asked'}."
            )


# ---- correctness ---------------------------------------------------------------------------------


def _published_values(
    paper: Mapping[int, Row], fewer: Mapping[int, Row]
) -> list[tuple[str, float, float, float]]:
    """(what, published, ours, how many of the last digit's units may be off)."""

    def gb(row: Row) -> float:
        return row.memory.total / 1e9

    def ms(row: Row) -> float:
        assert row.times is not None
        return 1e3 * row.times.tpot_s

    def rate(row: Row) -> float:
        return row.total_tok_per_s or 0.0

    return [
        ("batch 1, GB", 26.9, gb(paper[1]), 0.06),
        ("batch 1, ms", 8.0, ms(paper[1]), 0.06),
        ("batch 1, tok/s", 125, rate(paper[1]), 1),
        ("batch 64, GB", 79.7, gb(paper[64]), 0.06),
        ("batch 64, ms", 23.8, ms(paper[64]), 0.06),
        ("batch 64, tok/s", 2690, rate(paper[64]), 10),
        ("batch 256, GB", 240.8, gb(paper[256]), 0.06),
        ("batch 256, ms", 71.9, ms(paper[256]), 0.06),
        ("batch 256, tok/s", 3560, rate(paper[256]), 10),
        ("8 KV heads, batch 64, GB", 33.4, gb(fewer[64]), 0.06),
        ("8 KV heads, batch 64, ms", 10.0, ms(fewer[64]), 0.06),
        ("8 KV heads, batch 256, GB", 65.6, gb(fewer[256]), 0.06),
        ("8 KV heads, batch 256, ms", 19.6, ms(fewer[256]), 0.06),
        ("8 KV heads, batch 256, tok/s", 13_070, rate(fewer[256]), 30),
        ("batch 1, $ per million tokens", 4.46, paper[1].usd_per_mtok or 0.0, 0.01),
        ("batch 64, $ per million tokens", 0.21, paper[64].usd_per_mtok or 0.0, 0.005),
    ]


def _value(what: str, published: float, ours: float, slack: float) -> Check:
    passed = abs(ours - published) <= slack
    return Check(f"{_PAPER}: {what}", passed, f"published {published:,}, ours {ours:,.2f}")


def _grows() -> Check:
    """Memory never falls with requests or context."""
    totals = []
    for context in ("512", "4096", "8192"):
        question = ask("llama-3.1-8b", hardware="h100", context=context, concurrency="1,7,64")
        totals.append([row.memory.total for row in plan(question).rows])
    across = all(a < b for rows in totals for a, b in pairwise(rows))
    along = all(a < b for rows in zip(*totals, strict=True) for a, b in pairwise(rows))
    return Check("memory grows with requests and with context", across and along, "3 × 3 plans")


# ---- measurements and tables ---------------------------------------------------------------------


def _timed(lab: Lab) -> tuple[list[float], list[float]]:
    """Seconds per token of the run's model on this machine, and the bounds as probed before each
    run."""
    case = Case(Kind.DECODE, 0, _STEPS, depth=_DEPTH)
    model = lab.open()
    config = make_config(model, [case], Settings(), lab.threads)
    engine = Engine(native_executor(model.program, config), vocabulary_of(model), config)
    run_case(engine, case)  # warms up
    seconds, bounds = [], []
    for _ in range(7 if lab.quick else 20):
        bounds.append(_bound_s(lab, lab.rates()))
        seconds.append(run_case(engine, case).seconds / _STEPS)
    return seconds, bounds


def _bound_s(lab: Lab, rates: MachineRates) -> float:
    """Least seconds of such a token."""
    costs = lab.costs(cache_bytes=rates.llc_bytes)
    return decode_limit(costs, rates, _STEPS, depth=_DEPTH).bound_s / _STEPS


def _tables(lab: Lab, findings: Findings) -> tuple[list[BudgetTable], list[BudgetTable]]:
    local = local_hardware(lab.rates())
    groups: list[list[BudgetTable]] = []
    for title, names, hardware in (
        ("models present", PRESENT, [local, *map(find_hardware, _SMALL.split(","))]),
        ("models that are not", ABSENT, [find_hardware(name) for name in _LARGE.split(",")]),
    ):
        tables = []
        for name in names:
            lab.tell(f"planning {name}")
            concurrency = ",".join(map(str, _CONCURRENCY))
            question = ask(name, hardware=hardware, context=str(_CONTEXT), concurrency=concurrency)
            tables.append(plan(question))
        groups.append(tables)
        rows = [(table, row) for table in tables for row in table.rows]
        findings.tables += [_memory_table(title, rows), _times_table(title, rows)]
    return groups[0], groups[1]


def _memory_table(title: str, rows: Sequence[tuple[BudgetTable, Row]]) -> Table:
    cells: list[list[Cell]] = []
    for table, row in rows:
        kind = main_format(table.question.model.program).name
        memory, free = row.memory, row.free_bytes
        parts = (memory.weights, memory.kv, memory.activations, memory.overhead, memory.total)
        cells.append(
            [table.question.model.name, kind, row.hardware.name, row.concurrency,
             *(part / 1e9 for part in parts), None if free is None else free / 1e9,
             {True: "yes", False: "no", None: None}[row.fits], row.max_concurrency, row.max_context]
        )  # fmt: skip
    return Table(
        f"{title}: memory",
        ["model", "format", "hardware", "requests", "weights, GB", "KV", "activations", "other",
         "total", "left", "fits", "most requests", "longest context"],
        cells,
        f"Context {_CONTEXT:,} each. left: negative, where it does not fit. most requests: of this "
        "context that fit; longest context: at which so many requests fit, at most the model's.",
    )  # fmt: skip


def _times_table(title: str, rows: Sequence[tuple[BudgetTable, Row]]) -> Table:
    """Of what fits."""
    cells: list[list[Cell]] = []
    for table, row in rows:
        times = row.times
        if row.fits is False or times is None:
            continue
        program = table.question.model.program
        engines = engines_for(
            row.hardware, architecture=program.family.name,
            weight_format=main_format(program).name, concurrency=row.concurrency,
        )  # fmt: skip
        prefill = None if times.prefill is None else times.prefill.word
        cells.append(
            [table.question.model.name, row.hardware.name, row.concurrency, times.ttft_s,
             1e3 * times.tpot_s, row.tok_per_s, row.total_tok_per_s, row.usd_per_mtok, prefill,
             times.decode.word, next((e.engine for e in engines if e.suits), None)]
        )  # fmt: skip
    return Table(
        f"{title}: times, cost, engine",
        ["model", "hardware", "requests", "TTFT, s", "TPOT, ms", "tok/s of one", "tok/s of all",
         "$ per Mtok", "prompts wait for", "generation waits for", "engine"],
        cells,
        f"Of what fits. Context {_CONTEXT:,} each; TTFT: mean over requests that arrive at once "
        "with prompts of all but one token. Times and money are bounds. —: not known.",
    )  # fmt: skip


def _draw(lab: Lab) -> None:
    counts = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    caption = (
        f"Memory over requests of {_CONTEXT:,} positions (weights as described, KV in bf16), and "
        "what four cards hold: left of the crossing it fits."
    )
    alt = "Memory over number of requests, log axes, one curve per model, a line per card"
    with lab.figure("memory", caption, alt) as (figure, axis):
        figure.set_size_inches(7.5, 4.6)
        for series, name in enumerate(ABSENT):
            question = ask(
                name, hardware="h100", context=str(_CONTEXT), concurrency=",".join(map(str, counts))
            )
            totals = [row.memory.total / 1e9 for row in plan(question).rows]
            axis.plot(counts, totals, label=name, **style(series))
        for name in _DRAWN:
            limit: Any = find_hardware(name).memory_bytes
            if limit is not None:
                axis.axhline(limit / 1e9, color="#555555", linestyle=":", linewidth=1.2, marker="")
                axis.annotate(name, (counts[-1], limit / 1e9), fontsize=8, ha="right", va="bottom")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(counts, [str(c) for c in counts])
        axis.set_xlabel("requests at once")
        axis.set_ylabel("memory, GB")
        axis.legend(loc="upper left")
