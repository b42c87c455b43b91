"""The page of findings: one result as Markdown. Pure text."""

from __future__ import annotations

from typing import Any

from headrace.errors import UsageError
from headrace.lab.result import Result


def findings_page(result: Result) -> str:
    """The whole page, figures by their file names."""
    data = result.data
    parts = [
        f"# {data['title']}",
        f"**Question.** {data['question']}",
        f"**What is taught.** {data['claim']}",
        _checks(data),
    ]
    if data["passed"]:
        parts += [_predictions(data), _conclusions(data)]
        parts += [f"![{f['alt']}]({f['file']})\n\n*{f['caption']}*" for f in data["figures"]]
        parts += [_table(table) for table in data["tables"]]
        parts += [f"- {note}" for note in data["notes"]]
    parts += [_conditions(data)]
    if data["try_this"]:
        parts.append("**Try this next**\n\n" + "\n".join(f"- {line}" for line in data["try_this"]))
    return "\n\n".join(part for part in parts if part) + "\n"


def part(result: Result, what: str) -> str:
    """One part of the page: checks, predictions, conclusions, conditions, or a table by its name.
    Raises UsageError for a table that the result does not have."""
    data = result.data
    fixed = {
        "checks": _checks,
        "predictions": _predictions,
        "conclusions": _conclusions,
        "conditions": _conditions,
    }
    if what in fixed:
        return fixed[what](data)
    for table in data["tables"]:
        if table["name"] == what:
            return _table(table)
    known = ", ".join([*fixed, *(table["name"] for table in data["tables"])])
    raise UsageError(f"The result of {result.name} has no part {what!r}; it has {known}.")


def markdown_rows(columns: list[str], rows: list[list[Any]]) -> str:
    """A table; numbers to the right."""
    numeric = [all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    rule = "|".join("---:" if right else "---" for right in numeric)
    lines = [f"| {' | '.join(columns)} |", f"|{rule}|"]
    lines += [f"| {' | '.join(cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def cell(value: Any) -> str:
    """A value as people read it: three significant digits, thousands with commas, — for none."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return number(value)
    return str(value).replace("|", "\\|").replace("\n", " ")


def number(value: float) -> str:
    """Three significant digits, without an exponent where that is readable."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - _magnitude(value))
        return f"{value:,.{digits}f}"
    return f"{value:.2e}"


def _magnitude(value: float) -> int:
    """Power of ten of the first digit."""
    return 0 if value == 0 else int(f"{value:e}".rpartition("e")[2])


def interval(measured: dict[str, Any] | None) -> str:
    """ "12.3 (11.9 … 12.8)"."""
    if measured is None:
        return "—"
    value, low, high = (measured[name] for name in ("value", "low", "high"))
    if value is None:
        return "—"
    if low == value == high:
        return number(value)
    ends = (("−∞" if low is None else number(low)), ("∞" if high is None else number(high)))
    return f"{number(value)} ({ends[0]} … {ends[1]})"


def _checks(data: dict[str, Any]) -> str:
    rows = [[c["name"], "yes" if c["passed"] else "**NO**", c["detail"]] for c in data["checks"]]
    table = markdown_rows(["check", "holds", "figures"], rows)
    return f"**{checks_title(data)}**\n\n{table}"


def checks_title(data: dict[str, Any]) -> str:
    """What the checks of a result say, in a line; a planted fault must be noticed."""
    fault = data["inject"]
    if data["passed"]:
        missed = (
            f"No check noticed the planted fault {fault}: the figures are of a wrong computation"
        )
        return missed if fault else "Correct first"
    expected = f", as it must with the fault {fault} planted" if fault else ""
    return f"A check failed{expected}; nothing was measured"


#: Heads of the table of predictions; its cells: prediction_cells.
PREDICTION_COLUMNS = (
    "prediction", "predicted", "holds within", "measured", "verdict", "where the number comes from",
)  # fmt: skip


def prediction_cells(prediction: dict[str, Any]) -> list[str]:
    """One prediction with its verdict, as texts."""
    sign = {"at most": "≤ ", "at least": "≥ "}.get(prediction["kind"], "")
    return [
        prediction["what"],
        f"{sign}{number(prediction['value'])} {prediction['unit']}".strip(),
        _band(*prediction["band"]),
        interval(prediction["measured"]),
        prediction["verdict"],
        prediction["how"],
    ]


def _band(low: float | None, high: float | None) -> str:
    """Where an interval must lie as a whole for its prediction to hold."""
    if low is None or high is None:
        return f"≤ {number(high)}" if high is not None else f"≥ {number(low or 0.0)}"
    return number(low) if low == high else f"{number(low)} … {number(high)}"


def intervals_told(predictions: list[dict[str, Any]]) -> str:
    """Which intervals the table of predictions has, in one sentence; empty where all is exact."""
    measured = [p["measured"] for p in predictions if p["measured"] is not None]
    kinds = dict.fromkeys(
        f"{m['what']}, n = {m['n']:,}" for m in measured if not m["low"] == m["value"] == m["high"]
    )
    return f"In brackets: {'; '.join(kinds)}." if kinds else ""


def _predictions(data: dict[str, Any]) -> str:
    rows: list[list[Any]] = [prediction_cells(p) for p in data["predictions"]]
    if not rows:
        return ""
    parts = ["**Predicted, then measured**", markdown_rows([*PREDICTION_COLUMNS], rows)]
    return "\n\n".join([*parts, intervals_told(data["predictions"])]).rstrip()


def _conclusions(data: dict[str, Any]) -> str:
    lines = [
        f"- {'' if c['resolved'] else '**Not resolved:** '}{c['text']}" for c in data["conclusions"]
    ]
    return "**Conclusions**\n\n" + "\n".join(lines) if lines else ""


def _table(table: dict[str, Any]) -> str:
    note = f"\n\n{table['note']}" if table["note"] else ""
    return f"**{table['name']}**\n\n{markdown_rows(table['columns'], table['rows'])}{note}"


def _conditions(data: dict[str, Any]) -> str:
    return f"**Conditions.** {conditions_line(data)}"


def conditions_line(data: dict[str, Any]) -> str:
    """What the figures hold for, in one sentence."""
    conditions = data["conditions"]
    models = ", ".join(
        f"{m['name']} ({', '.join(m['weights'])}"
        + (f", --quantize {m['quantize']}" if m["quantize"] else "") + ")"
        for m in conditions.get("models", [])
    )  # fmt: skip
    facts = [
        "quick run" if data["quick"] else "full run",
        f"started {data['started']}",
        f"{data['seconds']:.0f} s",
        f"{conditions.get('cpu')}",
        f"{conditions.get('threads')} threads",
        f"Headrace {conditions.get('headrace')} ({conditions.get('numerics_id')})",
        models,
        f"text: {conditions['text']}" if conditions.get("text") else "",
        _probes(conditions.get("probes", [])),
        *_usual(conditions),
    ]
    return "; ".join(fact for fact in facts if fact) + "."


def _usual(conditions: dict[str, Any]) -> list[str]:
    """What holds for every figure of the run that does not say otherwise."""
    if "kv_format" not in conditions:
        return []
    activations = sorted(
        {a for m in conditions.get("models", []) for a in m.get("activations", ())}
    )
    return [
        f"activations multiplied in {', '.join(activations)}" if activations else "",
        f"KV in {conditions['kv_format']} where nothing else is said",
        "times without model load and warm-up, taken when the work was done",
    ]


def _probes(probes: list[dict[str, float]]) -> str:
    if not probes:
        return ""
    reads = sorted(p["read_gb_per_s"] for p in probes)
    peaks = sorted(p["int8_gop_per_s"] for p in probes)
    return (
        f"machine probed {len(probes)} times: reads {reads[0]:.0f} … {reads[-1]:.0f} GB/s, int8 "
        f"{peaks[0]:,.0f} … {peaks[-1]:,.0f} Gop/s"
    )
