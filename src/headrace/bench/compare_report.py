"""A comparison as data, and as a table for people (plain, Markdown, CSV)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.bench.compare import Comparison, Outcome
from headrace.bench.ratios import common_prefix, paired_ratio, spread

HEADERS = ("test", "engine", "tok/s", "min … max", "Headrace is", "min … max", "same tokens")


def to_dict(comparison: Comparison, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """{"conditions", "tests": [{"test", "engines": [{"engine", "rates", "tok_per_s", "ratio",
    "same_tokens", …}]}], "engines": [{"engine", "facts", "reason"}]}; ratio is Headrace ÷ engine,
    same_tokens [shared from the start, drawn]."""
    ours = comparison.outcomes[0]
    return {
        "conditions": dict(conditions) | {"idle_cpu_s": round(comparison.idle_cpu_s, 2)},
        "engines": [
            {"engine": o.entry.name, "title": o.entry.title, "facts": o.facts, "reason": o.reason}
            for o in comparison.outcomes
        ],
        "tests": [
            {
                "test": test.name,
                "tokens": test.tokens,
                "engines": [
                    _figures(test.name, o, ours)
                    for o in comparison.outcomes
                    if test.name in o.rates
                ],
            }
            for test in comparison.tests
        ],
    }


def _figures(test: str, outcome: Outcome, ours: Outcome) -> dict[str, Any]:
    rates = outcome.rates[test]
    figures: dict[str, Any] = {
        "engine": outcome.entry.name,
        "title": outcome.entry.title,
        "rates": rates,
        "tok_per_s": spread(rates).to_dict(),
    }
    if outcome is not ours and test in ours.rates:
        ratio = paired_ratio(ours.rates[test], rates)
        figures["ratio"] = ratio.to_dict() if ratio else None
        theirs = outcome.tokens[test]
        figures["same_tokens"] = [common_prefix(ours.tokens[test], theirs), len(theirs)]
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
                    f"{ratio['median']:.2f}×" if ratio else "",
                    f"{ratio['min']:.2f} … {ratio['max']:.2f}" if ratio else "",
                    f"{same[0]} of {same[1]}" if same else "",
                )
            )
    return result


def notes(report: Mapping[str, Any]) -> list[str]:
    """The conditions, how each engine was built, and why one did not take part."""
    c = report["conditions"]
    lines = [
        f"{c['model']} ({c['weights']}), {c['threads']} threads, {c['cpu']}, "
        f"{c['repetitions']} interleaved repetitions; model load and warm-up not included; "
        f"greedy; tokens/s of prompt, generation, or both together",
    ]
    for engine in report["engines"]:
        if engine["reason"]:
            lines.append(f"{engine['title']}: not measured: {engine['reason']}")
        facts = [str(v) for v in engine["facts"].values() if v and v != "unknown"]
        if facts:
            lines.append(f"{engine['title']}: {'; '.join(facts)}")
    lines += [f"{m['title']}: not installed; install it with: {m['install']}" for m in c["missing"]]
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
