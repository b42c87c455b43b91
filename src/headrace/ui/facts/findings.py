"""What a result says, as texts for a page. Pure; every value comes from a file and is only text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

VERDICTS: Mapping[str, str] = {
    "holds": "✓ holds",
    "refuted": "✗ refuted",
    "not resolved": "≈ not resolved",
    "not measured": "— not measured",
}
PREDICTION_COLUMNS = ("prediction", "verdict", "predicted", "measured", "where it comes from")
CHECK_COLUMNS = ("check", "holds", "figures")


def headline(result: Mapping[str, Any]) -> str:
    """One line for the list: how it ended, when."""
    when = str(result.get("started", ""))[:16].replace("T", " ")
    if not result.get("passed"):
        planted = f" (fault planted: {result['inject']})" if result.get("inject") else ""
        return f"✗ a check failed{planted} · {when}"
    counts = [
        (word, sum(p.get("verdict") == verdict for p in _dicts(result, "predictions")))
        for verdict, word in (
            ("holds", "hold"),
            ("refuted", "refuted"),
            ("not resolved", "not resolved"),
            ("not measured", "not measured"),
        )
    ]
    said = ", ".join(f"{count} {word}" for word, count in counts if count)
    return f"{said or 'nothing predicted'} · {when}"


def prediction_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Verdict table."""
    return [
        [
            str(p.get("what", "")),
            VERDICTS.get(str(p.get("verdict")), str(p.get("verdict"))),
            f"{_sign(p.get('kind'))}{cell(p.get('value'))} {p.get('unit', '')}".strip(),
            interval(p.get("measured")),
            str(p.get("how", "")),
        ]
        for p in _dicts(result, "predictions")
    ]


def check_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Correctness."""
    return [
        [str(c.get("name", "")), "✓ yes" if c.get("passed") else "✗ NO", str(c.get("detail", ""))]
        for c in _dicts(result, "checks")
    ]


def conclusions(result: Mapping[str, Any]) -> list[str]:
    """One sentence each; those that the error bars do not carry say so."""
    return [
        f"{'' if c.get('resolved') else 'Not resolved: '}{c.get('text', '')}"
        for c in _dicts(result, "conclusions")
    ]


def figures(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(file, caption, what it shows)."""
    return [
        (str(f.get("file", "")), str(f.get("caption", "")), str(f.get("alt", "")))
        for f in _dicts(result, "figures")
    ]


def tables(result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]], str]]:
    """(name, columns, rows, note)."""
    return [
        (
            str(t.get("name", "")),
            [str(c) for c in _list(t.get("columns"))],
            [[cell(value) for value in _list(row)] for row in _list(t.get("rows"))],
            str(t.get("note", "")),
        )
        for t in _dicts(result, "tables")
    ]


def condition_lines(result: Mapping[str, Any]) -> list[str]:
    """What the figures hold for: key and value."""
    found = result.get("conditions")
    return (
        [f"{key}: {_flat(value)}" for key, value in found.items()]
        if isinstance(found, dict)
        else []
    )


def cell(value: Any) -> str:
    """A value as people read it: three figures, thousands with commas, — for none."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and math.isfinite(value):
        if value and not 1e-3 <= abs(value) < 1e6:
            return f"{value:.2e}"
        digits = 0 if not value else max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}"
    return str(value)


def interval(measured: Any) -> str:
    """ "12.3 (11.9 … 12.8)"."""
    if not isinstance(measured, dict) or measured.get("value") is None:
        return "—"
    value, low, high = (measured.get(name) for name in ("value", "low", "high"))
    if low == value == high:
        return cell(value)
    ends = "−∞" if low is None else cell(low), "∞" if high is None else cell(high)
    return f"{cell(value)} ({ends[0]} … {ends[1]})"


def _sign(kind: Any) -> str:
    return {"at most": "≤ ", "at least": "≥ "}.get(str(kind), "")


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(one)}" for key, one in value.items())
    if isinstance(value, list):
        return "; ".join(_flat(one) for one in value)
    return cell(value)


def _dicts(result: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return [one for one in _list(result.get(name)) if isinstance(one, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
