"""The roofline: the machine's roofs, kinds of ops below them, steps as they were. Pure.

Operations per byte to the right, billions of operations per second up, both logarithmic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.ui.facts import charts
from headrace.ui.facts.watch import seconds

LOW, HIGH = 0.1, 1e4
UNITS = ("int8", "bf16", "f32")
_ROOF_DASHES = ("solid", "dashed", "dotted")
#: Kind of step → colour and shape.
LOOKS: Mapping[str, tuple[str, str]] = {
    "decode": (charts.PALETTE[0], "circle"),
    "prefill": (charts.PALETTE[1], "triangle"),
}

_AT_BEST, _MEASURED = "ops at best", "steps, measured"
OP_COLUMNS = ("op", "limited by", "count", "Mop", "MB", "op/byte", "at best")


def roofline() -> dict[str, Any]:
    """The chart, still empty; `machine`, `ops` and `steps` fill its series."""
    x = charts.axis("operations per byte", log=True, min=LOW, max=HIGH)
    y = charts.axis("Gop/s", log=True)
    chart = charts.base(x, y)
    chart["tooltip"] = {"trigger": "item", "formatter": "{a}\n{b}", "renderMode": "richText",
                        "confine": True}  # fmt: skip
    chart["grid"] = {"left": 60, "right": 40, "top": 72, "bottom": 44}
    names = [f"{kind}: {what}" for kind in LOOKS for what in (_AT_BEST, _MEASURED)]
    chart["legend"] |= {"icon": None, "itemWidth": 14, "itemHeight": 9, "data": names}
    for unit, dash in zip(UNITS, _ROOF_DASHES, strict=True):
        chart["series"].append(
            {
                "id": f"roof {unit}",
                "name": f"{unit} roof",
                "type": "line",
                "symbol": "none",
                "silent": True,
                "endLabel": {"show": True, "formatter": unit, "color": charts.GREY, "fontSize": 11},
                "itemStyle": {"color": charts.GREY},
                "lineStyle": {"color": charts.GREY, "type": dash, "width": 2},
                "data": [],
            }
        )
    for kind, (colour, shape) in LOOKS.items():
        hollow = {"color": "transparent", "borderColor": colour, "borderWidth": 2}
        chart["series"].append(
            {
                "id": f"ops {kind}",
                "name": f"{kind}: {_AT_BEST}",
                "type": "scatter",
                "symbol": shape,
                "symbolSize": 11,
                "itemStyle": hollow,
                "label": {
                    "show": True,
                    "formatter": "{b}",
                    "position": "top",
                    "color": charts.GREY,
                    "fontSize": 11,
                },
                "labelLayout": {"hideOverlap": True},
                "data": [],
            }
        )
        chart["series"].append(
            {
                "id": f"steps {kind}",
                "name": f"{kind}: {_MEASURED}",
                "type": "scatter",
                "symbol": shape,
                "symbolSize": 7,
                "itemStyle": {"color": colour, "opacity": 0.65},
                "data": [],
            }
        )
    return chart


def machine(rates: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The roofs' series, from /limits' machine; nothing where rates are not known."""
    series = []
    for unit in UNITS:
        data: list[list[float]] = []
        if rates is not None:
            bandwidth, peak = rates["read_gb_per_s"], rates[f"{unit}_gop_per_s"]
            ridge = peak / bandwidth
            data = [[LOW, LOW * bandwidth], [ridge, peak], [max(HIGH, ridge), peak]]
        series.append({"id": f"roof {unit}", "data": data})
    return series


def ops(kind: str, listed: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The series of a step's kinds of ops: where the bound has them. What moves no byte, or has no
    work, has no place in the chart."""
    points = []
    for op in listed:
        if op["bytes"] and op["operations"] and op["limit_s"]:
            x, y = op["operations"] / op["bytes"], op["operations"] / op["limit_s"] / 1e9
            points.append({"name": op["name"], "value": [_short(x), _short(y)]})
    return {"id": f"ops {kind}", "data": points}


def steps(kind: str, points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """The series of steps as they were: (operations per byte, operations per second)."""
    data = [
        {"name": f"{_short(x)} op/byte, {_short(y / 1e9)} Gop/s",
         "value": [_short(x), _short(y / 1e9)]}
        for x, y in points
    ]  # fmt: skip
    return {"id": f"steps {kind}", "data": data}


def op_rows(
    listed: Iterable[Mapping[str, Any]], rates: Mapping[str, Any] | None
) -> list[list[str]]:
    """The table of a step's kinds of ops, the longest first."""
    return [
        [
            op["name"],
            _limit(op, rates),
            f"{op['count']:,}",
            figures(op["operations"] / 1e6),
            figures(op["bytes"] / 1e6),
            figures(op["operations"] / op["bytes"]) if op["bytes"] else "—",
            _time(op["limit_s"]),
        ]
        for op in sorted(listed, key=lambda op: -(op["limit_s"] or 0.0))
    ]


def figures(value: float) -> str:
    """Three figures, never with a power of ten."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    if value >= 0.01:
        return f"{value:.3g}"
    return "< 0.01"


def step_words(what: str, step: Mapping[str, Any]) -> str:
    """One sentence about a step's bound."""
    if step["bound_s"] is None:
        return f"{what}: {step['operations'] / 1e9:.3g} Gop, {step['bytes'] / 1e6:.3g} MB."
    return (
        f"{what}: at best {_time(step['bound_s'])}, {step['tok_per_s']:,.0f} tok/s, limited by "
        f"{step['limited_by']}."
    )


def _limit(op: Mapping[str, Any], rates: Mapping[str, Any] | None) -> str:
    """The roof that an op meets first."""
    if not op["operations"]:
        return "memory" if op["bytes"] else "—"
    if rates is None:
        return "—"
    memory_s = op["bytes"] / rates["read_gb_per_s"]
    return (
        "memory" if memory_s > op["operations"] / rates[f"{op['unit']}_gop_per_s"] else op["unit"]
    )


def _time(value: float | None) -> str:
    if value is not None and value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    return seconds(value)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
