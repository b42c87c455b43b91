"""A comparison as data, and as a table for people (plain, Markdown, CSV)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.bench.compare import DISTURBED, Comparison, Outcome, Test
from headrace.bench.ratios import common_prefix, paired_ratio, spread
from headrace.limits.rates import MachineRates, median_rates
from headrace.limits.workloads import RunLimit

HEADERS = (
    "test", "engine", "tok/s", "min … max", "of bound", "Headrace is", "min … max", "same tokens",
)  # fmt: skip


def to_dict(comparison: Comparison, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """{"conditions", "probe", "engines": [{"engine", "facts", "reason"}], "tests": [{"test",
    "bound_tok_per_s", "engines": [{"engine", "rates", "tok_per_s", "of_bound", "ratio",
    "same_tokens", …}]}]}; ratio is Headrace ÷ engine, same_tokens [shared from the start, drawn],
    of_bound the share of what the bound of this model file's work allows."""
    ours = comparison.outcomes[0]
    return {
        "conditions": dict(conditions) | {"idle_cpu_s": round(comparison.idle_cpu_s, 2)},
        "probe": _probe([p for probes in comparison.probes.values() for p in probes]),
        "engines": [
            {"engine": o.entry.name, "title": o.entry.title, "facts": o.facts, "reason": o.reason}
            for o in comparison.outcomes
        ],
        "tests": [
            {
                "test": test.name,
                "tokens": test.tokens,
                "probe": _probe(comparison.probes[test.name]),
                "bound_tok_per_s": test.tokens / comparison.limits[test.name].bound_s,
                "serial_tok_per_s": test.tokens / comparison.limits[test.name].serial_s,
                "engines": [
                    _figures(test, o, ours, comparison.limits[test.name])
                    for o in comparison.outcomes
                    if test.name in o.rates
                ],
            }
            for test in comparison.tests
        ],
    }


def _probe(probes: Sequence[MachineRates]) -> dict[str, float]:
    rates = median_rates(probes)
    return {
        "read_gb_per_s": rates.read_bytes_per_s / 1e9,
        "int8_gop_per_s": rates.int8_ops_per_s / 1e9,
        "bf16_gop_per_s": rates.bf16_ops_per_s / 1e9,
        "f32_gop_per_s": rates.f32_ops_per_s / 1e9,
    }


def _figures(test: Test, outcome: Outcome, ours: Outcome, limit: RunLimit) -> dict[str, Any]:
    rates = outcome.rates[test.name]
    speed = spread(rates)
    figures: dict[str, Any] = {
        "engine": outcome.entry.name,
        "title": outcome.entry.title,
        "rates": rates,
        "others_cpu_share": outcome.others[test.name],
        "tok_per_s": speed.to_dict(),
        "of_bound": speed.median / (test.tokens / limit.bound_s),
        "of_serial": speed.median / (test.tokens / limit.serial_s),
    }
    if outcome is not ours and test.name in ours.rates:
        ratio = paired_ratio(ours.rates[test.name], rates)
        figures["ratio"] = ratio.to_dict() if ratio else None
        theirs = outcome.tokens[test.name]
        figures["same_tokens"] = [common_prefix(ours.tokens[test.name], theirs), len(theirs)]
    return figures


def rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per test and engine, in the columns of HEADERS."""
    result: list[tuple[str, ...]] = []
    for test in report["tests"]:
        for figures in test["engines"]:
            speed, ratio = figures["tok_per_s"], figures.get("ratio")
            same = figures.get("same_tokens")
            result.append(
                (
                    test["test"],
                    figures["title"],
                    number(speed["median"]),
                    f"{number(speed['min'])} … {number(speed['max'])}",
                    f"{figures['of_bound']:.0%}",
                    f"{ratio['median']:.2f}×" if ratio else "",
                    f"{ratio['min']:.2f} … {ratio['max']:.2f}" if ratio else "",
                    f"{same[0]} of {same[1]}" if same else "",
                )
            )
    return result


def notes(report: Mapping[str, Any]) -> list[str]:
    """The conditions, how each engine was built, and why one did not take part."""
    c, p = report["conditions"], report["probe"]
    lines = [
        f"{c['model']} ({c['weights']}), {c['threads']} threads, {c['cpu']}, "
        f"{c['repetitions']} interleaved repetitions; model load and warm-up not included; "
        f"greedy; tokens/s of prompt, generation, or both together",
        f"Headrace checked first: {', '.join(c['checked'])}",
        f"probe (medians): {p['read_gb_per_s']:.1f} GB/s read, {p['int8_gop_per_s']:.0f} Gop/s "
        f"int8, {p['bf16_gop_per_s']:.0f} bf16; the bound is that of this file's work",
    ]
    for engine in report["engines"]:
        if engine["reason"]:
            lines.append(f"{engine['title']}: not measured: {engine['reason']}")
        facts = [str(v) for v in engine["facts"].values() if v and v != "unknown"]
        if facts:
            lines.append(f"{engine['title']}: {'; '.join(facts)}")
    lines += [f"{m['title']}: not installed; install it with: {m['install']}" for m in c["missing"]]
    taken = max(
        (share for t in report["tests"] for f in t["engines"] for share in f["others_cpu_share"]),
        default=0.0,
    )
    if taken > DISTURBED:
        lines.append(f"other processes took up to {taken:.0%} of the CPUs during a measurement")
    if c["idle_cpu_s"] > 0.05:
        lines.append(f"waiting engines used {c['idle_cpu_s']} s of CPU during measurements")
    return lines


def render(report: Mapping[str, Any], output: str) -> str:
    """output: table, md, csv or json."""
    if output == "json":
        return json.dumps(report, indent=1, ensure_ascii=False)
    table = rows(report)
    if output == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HEADERS, *table])
        return text.getvalue().rstrip("\n")
    if output == "md":
        lines = ["| " + " | ".join(row) + " |" for row in (HEADERS, *table)]
        lines.insert(1, "|---|---|" + "---:|" * (len(HEADERS) - 2))
        return "\n".join([*lines, "", *(f"- {note}" for note in notes(report))])
    return "\n".join([*_aligned([HEADERS, *table]), "", *notes(report)])


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def number(value: float) -> str:
    """Three or more figures: 4711, 61.2, 3.14."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
