"""Charts: the options that all of a page's charts share, and lines. Pure: dicts for ECharts.

Series differ by colour, by dashes and by the shape of their points. Colours are the page's own
variables (shell.css), so that a chart, drawn as SVG, follows light and dark by itself. Texts go
only into values: the framework runs a *key* that begins with a colon as a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PALETTE = tuple(f"var(--hr-s{number})" for number in range(1, 6))
DASHES = ("solid", "dashed", "dotted", "solid", "dashed")
SYMBOLS = ("circle", "rect", "triangle", "diamond", "roundRect")
#: For text and lines.
GREY = "var(--hr-soft)"
_FAINT = "var(--hr-faint)"


@dataclass(frozen=True, slots=True)
class Line:
    """One series: x ascending; None as y breaks the line."""

    name: str
    points: Sequence[tuple[float, float | None]]


def axis(name: str, *, log: bool = False, **more: Any) -> dict[str, Any]:
    """An axis of numbers. more: ECharts' own, as min and max."""
    return {
        "type": "log" if log else "value",
        "name": name,
        "nameLocation": "middle",
        "nameGap": 26,
        "nameTextStyle": {"color": GREY, "fontSize": 12},
        "axisLabel": {"color": GREY, "fontSize": 11, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": GREY}},
        "splitLine": {"lineStyle": {"color": _FAINT}},
        "minorSplitLine": {"show": False},
        **more,
    }


def base(x: Mapping[str, Any], y: Mapping[str, Any]) -> dict[str, Any]:
    """A chart without series. It does not move: numbers change too often for that."""
    return {
        "animation": False,
        "color": list(PALETTE),
        "backgroundColor": "transparent",
        "grid": {"left": 56, "right": 16, "top": 34, "bottom": 44},
        "legend": {"top": 0, "textStyle": {"color": GREY, "fontSize": 12}, "icon": "roundRect"},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
        "xAxis": dict(x),
        "yAxis": {**y, "nameGap": 42},
        "series": [],
        "aria": {"enabled": True},
    }


def described(options: dict[str, Any], words: str) -> dict[str, Any]:
    """Says what a chart shows, for those who do not see it."""
    options["aria"] = {**options.get("aria", {}), "enabled": True, "label": {"description": words}}
    return options


def line(number: int, one: Line, *, points: bool = False, **more: Any) -> dict[str, Any]:
    """The series of a line; number: its place in the chart, which gives its look."""
    look = number % len(PALETTE)
    return {
        "type": "line",
        "name": one.name,
        "data": [[x, y] for x, y in one.points],
        "showSymbol": points,
        "symbol": SYMBOLS[look],
        "symbolSize": 6,
        "lineStyle": {"width": 2, "type": DASHES[look]},
        **more,
    }


def lines(
    x: Mapping[str, Any], y: Mapping[str, Any], series: Sequence[Line], *, points: bool = False
) -> dict[str, Any]:
    """A chart of lines; one line alone needs no legend."""
    chart = base(x, y)
    chart["series"] = [line(number, one, points=points) for number, one in enumerate(series)]
    chart["legend"]["show"] = len(series) > 1
    return chart


def number_and_mass(x: Mapping[str, Any], number: Line, mass: Line) -> dict[str, Any]:
    """Candidates to the left, on a logarithmic axis; their mass, dashed, to the right."""
    chart = lines(x, axis("candidates", log=True, min=1), (number, mass))
    right = {**axis("mass", min=0, max=1), "nameGap": 32, "splitLine": {"show": False}}
    chart["yAxis"] = [chart["yAxis"], right]
    chart["series"][1]["yAxisIndex"] = 1
    chart["grid"] |= {"left": 52, "right": 46}
    chart["legend"] |= {"icon": None, "itemWidth": 30}
    return chart


def mark(x: float, text: str) -> dict[str, Any]:
    """An upright line at x, for the `markLine` of a series."""
    return {
        "silent": True,
        "symbol": "none",
        "lineStyle": {"color": GREY, "type": "dashed", "width": 1.5},
        "label": {"formatter": text, "color": GREY, "position": "end"},
        "data": [{"xAxis": x}],
    }


# ---- charts that grow, see live.py ---------------------------------------------------------------


def over_time(y: Mapping[str, Any], names: Sequence[str], **more: Any) -> dict[str, Any]:
    """Lines over time without points: `Live.rows` appends [ms, y of every line]."""
    clock = axis("")
    clock |= {"type": "time", "splitNumber": 4, "splitLine": {"show": False}}
    clock["axisLabel"] = {**clock["axisLabel"], "formatter": "{HH}:{mm}:{ss}"}
    chart = base(clock, y)
    chart["grid"]["bottom"] = 26
    chart["legend"] |= {"icon": None, "itemWidth": 34}  # a piece of the line: its dashes
    chart["dataset"] = {"source": []}
    chart["series"] = [
        {key: value for key, value in line(number, Line(name, ())).items() if key != "data"}
        | {"encode": {"x": 0, "y": number + 1}, **more}
        for number, name in enumerate(names)
    ]
    return chart


def bars(x: str, y: str, names: Sequence[str]) -> dict[str, Any]:
    """Bars beside each other; their data comes later."""
    chart = base({**axis(x), "type": "category", "splitLine": {"show": False}}, axis(y))
    chart["series"] = [
        {"type": "bar", "name": name, "data": [], "barCategoryGap": "15%"} for name in names
    ]
    chart["legend"]["show"] = len(names) > 1
    if len(names) == 1:
        chart["grid"]["top"] = 12
    return chart
