"""What a result says, as texts for a page. Pure; every value comes from a file and is only text.

Whatever the file holds, each function returns, and what it returns is bounded and can be sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

#: Shown of one list, and of one text, at most; result.json has the rest.
MOST_ENTRIES, MOST_CHARS = 400, 4000
MOST_TABLES, MOST_COLUMNS = 40, 40
#: Lists in lists that are shown.
MOST_DEPTH = 8

VERDICTS: Mapping[str, str] = {
    "holds": "✓ holds",
    "refuted": "✗ refuted",
    "not resolved": "≈ not resolved",
    "not measured": "— not measured",
}
PREDICTION_COLUMNS = (
    "prediction", "verdict", "predicted", "holds within", "measured", "where it comes from",
)  # fmt: skip
CHECK_COLUMNS = ("check", "holds", "figures")


def headline(result: Mapping[str, Any]) -> str:
    """One line for the list: how it ended, when."""
    when = _text(result.get("started", ""))[:16].replace("T", " ")
    if not result.get("passed"):
        fault = result.get("inject")
        planted = f" (fault planted: {_text(fault)[:40]})" if fault else ""
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
            _text(p.get("what", "")),
            VERDICTS.get(verdict := _text(p.get("verdict")), verdict),
            f"{_sign(p.get('kind'))}{cell(p.get('value'))} {_text(p.get('unit', ''))}".strip(),
            band(p.get("band")),
            interval(p.get("measured")),
            _text(p.get("how", "")),
        ]
        for p in _dicts(result, "predictions")
    ]


def check_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Correctness."""
    return [
        [_text(c.get("name", "")), "✓ yes" if c.get("passed") else "✗ NO",
         _text(c.get("detail", ""))]
        for c in _dicts(result, "checks")
    ]  # fmt: skip


def conclusions(result: Mapping[str, Any]) -> list[str]:
    """One sentence each; those that the error bars do not carry say so."""
    return [
        f"{'' if c.get('resolved') else 'Not resolved: '}{_text(c.get('text', ''))}"
        for c in _dicts(result, "conclusions")
    ]


def figures(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(file, caption, what it shows)."""
    return [
        (_text(f.get("file", "")), _text(f.get("caption", "")), _text(f.get("alt", "")))
        for f in _dicts(result, "figures")
    ]


def tables(result: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]], str]]:
    """(name, columns, rows, note); every row as long as the columns."""
    found = []
    for t in _dicts(result, "tables")[:MOST_TABLES]:
        columns = [_text(c) for c in _list(t.get("columns"))[:MOST_COLUMNS]]
        rows = _list(t.get("rows"))
        texts = [[cell(value) for value in _list(row)][: len(columns)] for row in rows]
        texts = [row + [""] * (len(columns) - len(row)) for row in texts]
        found.append((_text(t.get("name", "")), columns, texts, _text(t.get("note", ""))))
    return found


def lines(result: Mapping[str, Any], name: str) -> list[str]:
    """A list of sentences: notes, try_this."""
    return [_text(one) for one in _list(result.get(name))]


def condition_lines(result: Mapping[str, Any]) -> list[str]:
    """What the figures hold for: key and value."""
    found = result.get("conditions")
    return (
        [_text(f"{key}: {_flat(value)}") for key, value in islice(found.items(), MOST_ENTRIES)]
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
    return _text(value)


def interval(measured: Any) -> str:
    """ "12.3 (11.9 … 12.8)"."""
    if not isinstance(measured, dict) or measured.get("value") is None:
        return "—"
    value, low, high = (measured.get(name) for name in ("value", "low", "high"))
    if low == value == high:
        return cell(value)
    ends = "−∞" if low is None else cell(low), "∞" if high is None else cell(high)
    return f"{cell(value)} ({ends[0]} … {ends[1]})"


def band(ends: Any) -> str:
    """Where an interval must lie as a whole: "11.9 … 12.8", "≤ 12.8"."""
    if not isinstance(ends, list) or len(ends) != 2 or ends == [None, None]:
        return "—"
    low, high = ends
    if low is None:
        return f"≤ {cell(high)}"
    if high is None:
        return f"≥ {cell(low)}"
    return cell(low) if low == high else f"{cell(low)} … {cell(high)}"


def _sign(kind: Any) -> str:
    return {"at most": "≤ ", "at least": "≥ "}.get(str(kind), "")


def _flat(value: Any, depth: int = 0) -> str:
    if depth > MOST_DEPTH:
        return "…"
    if isinstance(value, dict):
        some = islice(value.items(), MOST_ENTRIES)
        return ", ".join(f"{key} {_flat(one, depth + 1)}" for key, one in some)
    if isinstance(value, list):
        return "; ".join(_flat(one, depth + 1) for one in value[:MOST_ENTRIES])
    return cell(value)


def _text(value: Any) -> str:
    """A text that can be sent: halves of characters, as JSON may hold them, cannot."""
    whole = _flat(value) if isinstance(value, list | dict) else str(value)
    return whole[:MOST_CHARS].encode("utf-8", "replace").decode()


def _dicts(result: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    return [one for one in _list(result.get(name)) if isinstance(one, dict)]


def _list(value: Any) -> list[Any]:
    return value[:MOST_ENTRIES] if isinstance(value, list) else []
