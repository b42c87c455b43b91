"""docs/performance.md from docs/performance.json: the aims, what was measured, where time goes."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.bench.compare import DISTURBED
from headrace.bench.ratios import Spread, paired_ratio, spread

Report = dict[str, Any]

MODELS = {
    "smollm2-135m": "SmolLM2-135M",
    "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B",
    "gemma3-270m": "Gemma3-270M",
    "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B",
}
PROMPT, GENERATION, BATCH = "pp512", "tg64", "32×(128+64)"
PEER = "llama-cpp-python"

#: (row, part, test, what is compared, aims in the order of MODELS)
_RATIO, _BOUND = "ratio", "of_bound"
AIMS: tuple[tuple[str, str, str, str, tuple[float, ...]], ...] = (
    ("prompt 512, × llama.cpp", "speed", PROMPT, _RATIO, (8, 4.5, 4, 2.6)),
    ("generation batch 1, × llama.cpp", "speed", GENERATION, _RATIO, (3, 2.4, 2.2, 1.6)),
    ("generation, % of the bound", "speed", GENERATION, _BOUND, (0.60, 0.75, 0.65, 0.80)),
    ("prompt 512, % of the bound", "speed", PROMPT, _BOUND, (0.45, 0.50, 0.45, 0.50)),
    ("32 sequences (128 in, 64 out), × llama.cpp", "batch", BATCH, _RATIO, (5, 4, 3, 2.2)),
)
LONG_PROMPT_AIM, LONG_CONTEXT_AIM = 0.45, 0.70
LOAD_AIMS = {"smollm2-135m": 0.5, "qwen2.5-coder-1.5b": 4.0}


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim. shown, aim: as printed. note: spread or condition. missed: None = not measured."""

    what: str
    model: str
    aim: str
    shown: str
    note: str
    missed: bool | None


def aims(data: Report) -> list[Aim]:
    """All aims in the order of the page."""
    return [*_table_aims(data), *_long_aims(data), *_load_aims(data), *_step_aims(data)]


def _table_aims(data: Report) -> Iterator[Aim]:
    for what, part, test, kind, values in AIMS:
        for (model, title), aim in zip(MODELS.items(), values, strict=True):
            wanted = f"≥ {aim:g}×" if kind == _RATIO else f"≥ {aim:.0%}"
            found = _find(data.get(f"{part}:{model}"), test)
            measured = None if found is None else _measured(*found, kind)
            if found is None or measured is None:
                yield Aim(what, title, wanted, "not measured", "", None)
                continue
            if kind == _RATIO:
                shown = f"{measured.median:.2f}×"
                note = f"{measured.min:.2f} … {measured.max:.2f}"
                theirs = statistics.median(found[1][PEER]["rates"])
                note += f"; the bound allows {found[0]['bound_tok_per_s'] / theirs:.2f}"
            else:
                shown = f"{measured.median:.0%}"
                note = f"{measured.min:.0%} … {measured.max:.0%}"
            yield Aim(what, title, wanted, shown, note, measured.median < aim)


def _find(report: Report | None, test: str) -> tuple[Report, dict[str, Report]] | None:
    """A test of a comparison, and its figures by engine."""
    for found in () if report is None else report["tests"]:
        if found["test"] == test:
            return found, {figures["engine"]: figures for figures in found["engines"]}
    return None


def _measured(test: Report, engines: dict[str, Report], kind: str) -> Spread | None:
    ours = engines.get("headrace")
    if ours is None:
        return None
    if kind == _BOUND:
        return spread([rate / test["bound_tok_per_s"] for [rate] in _quiet(ours)])
    theirs = engines.get(PEER)
    return None if theirs is None else _ratio(ours, theirs)


def measured_rate(data: Report, part: str, test: str) -> float | None:
    """Headrace's tokens per second in a test of a part; None = not measured."""
    found = _find(data.get(part), test)
    if found is None or "headrace" not in found[1]:
        return None
    return spread([rate for [rate] in _quiet(found[1]["headrace"])]).median


def _quiet(*engines: Report) -> list[list[float]]:
    """[a value of each engine] of every repetition in which nobody else used the CPUs; of all
    repetitions where that never was so."""
    rates = zip(*(e["rates"] for e in engines), strict=False)
    shares = zip(
        *(e.get("others_cpu_share") or [0.0] * len(e["rates"]) for e in engines), strict=False
    )
    pairs = [(list(rate), max(share)) for rate, share in zip(rates, shares, strict=True)]
    return [rate for rate, share in pairs if share < DISTURBED] or [rate for rate, _ in pairs]


def _ratio(ours: Report, theirs: Report) -> Spread | None:
    values = _quiet(ours, theirs)
    return paired_ratio([a for a, _ in values], [b for _, b in values])


def _long_aims(data: Report) -> Iterator[Aim]:
    for what, part, share, aim in (
        ("prompt 4096, % of its serial sum", "prompt", "of_serial", LONG_PROMPT_AIM),
        ("generation at context 4096, % of the bound", "depth", "of_bound", LONG_CONTEXT_AIM),
    ):
        title = MODELS["smollm2-135m"]
        if "long" not in data:
            yield Aim(what, title, f"≥ {aim:.0%}", "not measured", "", None)
            continue
        row = data["long"][part]["rows"][0]
        note = f"{number(row['tok_per_s']['median'])} tok/s"
        yield Aim(what, title, f"≥ {aim:.0%}", f"{row[share]:.0%}", note, row[share] < aim)


def _load_aims(data: Report) -> Iterator[Aim]:
    for model, aim in LOAD_AIMS.items():
        what, wanted = "loading with repacking", f"≤ {aim:g} s"
        report = data.get(f"load:{model}")
        if report is None:
            yield Aim(what, MODELS[model], wanted, "not measured", "", None)
            continue
        seconds = report["open_s"] + report["pack_s"]
        note = f"open {report['open_s']:.2f}, pack {report['pack_s']:.2f}"
        yield Aim(what, MODELS[model], wanted, f"{seconds:.2f} s", note, seconds > aim)


def _step_aims(data: Report) -> Iterator[Aim]:
    for batch, aim in ((1, 100), (32, 400)):
        what, title = f"Python time per step, batch {batch}", MODELS["smollm2-135m"]
        rows = [r for r in _step_rows(data) if r["batch"] == batch and r["kind"] == "greedy"]
        if not rows:
            yield Aim(what, title, f"≤ {aim} µs", "not measured", "", None)
            continue
        micros = rows[0]["sum"]
        yield Aim(what, title, f"≤ {aim} µs", f"{micros:.0f} µs", "greedy", micros > aim)


def _step_rows(data: Report) -> Sequence[Report]:
    rows: Sequence[Report] = data.get("steps", {}).get("rows", ())
    return rows


# ---- the page -----------------------------------------------------------------------------------


def page(data: Report) -> str:
    """The whole page."""
    found = aims(data)
    missed = [aim for aim in found if aim.missed]
    open_ = [aim for aim in found if aim.missed is None]
    lines = [
        "# Performance",
        "",
        "Written by `tools/write_performance.py` from `docs/performance.json`; do not edit. Model "
        "load and warm-up are",
        "not included. Ratios compare values measured one after the other in one interleaved run, "
        "as median (and",
        "smallest … largest) of the repetitions; repetitions in which other processes took more "
        "than 10 % of the CPUs",
        'do not count where others remain. "The bound allows": what 100 % of the bound would be '
        "at the bandwidth and",
        "peaks probed in that run. What the bound is: [limits.md](limits.md); how each engine is "
        "driven:",
        "[bench.md](bench.md).",
        "",
        f"{len(found) - len(missed) - len(open_)} of {len(found)} aims are reached"
        + (f", {len(missed)} missed" if missed else "")
        + (f", {len(open_)} not measured" if open_ else "")
        + ".",
        "",
        "## Aims",
        "",
        *_aim_table(found),
        "",
        *_conditions(data),
    ]
    for model, title in MODELS.items():
        lines += _model_section(data, model, title, missed)
    lines += _long_section(data)
    lines += _step_section(data)
    return "\n".join(lines).rstrip() + "\n"


def _aim_table(found: Sequence[Aim]) -> Iterator[str]:
    yield "| | model | aim | measured | smallest … largest, parts | |"
    yield "|---|---|---|---|---|---|"
    for a in found:
        verdict = {True: "**missed**", False: "reached", None: ""}[a.missed]
        yield f"| {a.what} | {a.model} | {a.aim} | {a.shown} | {a.note} | {verdict} |"


def _conditions(data: Report) -> Iterator[str]:
    """One line per comparison: machine, versions, the probe beside it."""
    reports = [(name, data[name]) for name in data if "tests" in data[name]]
    if not reports:
        return
    first = reports[0][1]["conditions"]
    yield (
        f"{first['cpu']}, {first['threads']} threads, {first['isa']}, Python {first['python']}, "
        f"{first['platform']}. The probe of each run (medians):"
    )
    yield ""
    yield "| run | date | commit | read GB/s | int8 Gop/s | bf16 Gop/s | repetitions |"
    yield "|---|---|---|---|---|---|---|"
    for name, report in reports:
        c, p = report["conditions"], report["probe"]
        yield (
            f"| {name} | {c['date']} | {c['git_commit']} | {p['read_gb_per_s']:.1f} | "
            f"{p['int8_gop_per_s']:.0f} | {p['bf16_gop_per_s']:.0f} | {c['repetitions']} |"
        )
    yield ""
    yield "How the engines were built and set:"
    yield ""
    told: dict[str, str] = {}
    for _, report in reports:
        for engine in report["engines"]:
            facts = [str(v) for v in engine["facts"].values() if v and v != "unknown"]
            if facts and engine["engine"] != "headrace":
                told[engine["title"]] = "; ".join(facts)
    for title, facts_ in told.items():
        yield f"- {title}: {facts_}"


def _model_section(data: Report, model: str, title: str, missed: Sequence[Aim]) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    yield "| test | engine | tok/s | min … max | % of bound | Headrace is | min … max |"
    yield "|---|---|---|---|---|---|---|"
    reasons = {}
    for part in ("speed", "batch", "others"):
        report = data.get(f"{part}:{model}")
        if report is None:
            continue
        for test in report["tests"]:
            yield from _test_rows(test)
        for engine in report["engines"]:
            if engine["reason"]:
                reasons[engine["title"]] = engine["reason"]
    for name, reason in reasons.items():
        yield from ("", f"{name} not measured: {reason}")
    own = [aim for aim in missed if aim.model == title and "context" not in aim.what]
    report = data.get(f"ops:{model}")
    if report is not None and own:
        yield ""
        yield "Missed: " + ", ".join(f"{aim.what} ({aim.shown})" for aim in own) + "."
        yield "Where the time goes (what was tried stands in [decisions.md](decisions.md)):"
        yield from _op_tables(report)


def _test_rows(test: Report) -> Iterator[str]:
    ours = next((f for f in test["engines"] if f["engine"] == "headrace"), None)
    for figures in test["engines"]:
        speed = spread([rate for [rate] in _quiet(figures)])
        ratio = None if ours is None or figures is ours else _ratio(ours, figures)
        yield (
            f"| {test['test']} | {figures['title']} | {number(speed.median)} | "
            f"{number(speed.min)} … {number(speed.max)} | "
            f"{speed.median / test['bound_tok_per_s']:.0%} | "
            + (f"{ratio.median:.2f}× | {ratio.min:.2f} … {ratio.max:.2f} |" if ratio else "| |")
        )


def _op_tables(report: Report) -> Iterator[str]:
    for table in report.get("ops", ()):
        yield from ("", f"{table['step']}:", "")
        yield "| op | count | ms | share | GB/s | Gop/s | % of its limit |"
        yield "|---|---|---|---|---|---|---|"
        for op in table["ops"]:
            limit = "" if op["of_limit"] is None else f"{op['of_limit']:.0%}"
            yield (
                f"| {op['op']} | {op['count']} | {op['ms']:.3f} | {op['share']:.1%} | "
                f"{op['gb_per_s']:.1f} | {op['gop_per_s']:.0f} | {limit} |"
            )


def _long_section(data: Report) -> Iterator[str]:
    if "long" not in data:
        return
    yield from ("", "## Long contexts, SmolLM2-135M", "")
    yield "| test | context before | tok/s | bound | % of bound | serial sum | % of serial sum |"
    yield "|---|---|---|---|---|---|---|"
    for part in ("prompt", "depth"):
        for row in data["long"][part]["rows"]:
            yield (
                f"| {row['test']} | {row['depth']} | {number(row['tok_per_s']['median'])} | "
                f"{number(row['bound_tok_per_s'])} | {row['of_bound']:.0%} | "
                f"{number(row['serial_tok_per_s'])} | {row['of_serial']:.0%} |"
            )
    for part in ("prompt", "depth"):
        yield from _op_tables(data["long"][part])


def _step_section(data: Report) -> Iterator[str]:
    rows = _step_rows(data)
    if not rows:
        return
    yield from ("", "## Python time per step", "")
    yield "Microseconds besides the native calls, by part (`tools/bench_steps.py`)."
    yield ""
    names = ("schedule", "prepare", "run", "draw", "commit", "loop", "sum")
    yield "| requests | batch | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(names)
    for row in rows:
        cells = " | ".join(f"{row[name]:.0f}" for name in names)
        yield f"| {row['kind']} | {row['batch']} | {cells} |"


def number(value: float) -> str:
    """Three or more figures: 4711, 61.2, 3.14."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
