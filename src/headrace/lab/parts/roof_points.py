"""Ops of profiled steps as points under a roof: their figures, their table, their picture.

A point is one op of the program, all layers of it together, since every layer does the same. Knows
no engine: it is given rows of limits/op_rows.py, one set per repetition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.lab.lab import Lab
from headrace.lab.plots import STYLES
from headrace.lab.statistics import Interval, median_interval
from headrace.lab.values import Table
from headrace.limits.op_rows import OpRow
from headrace.limits.rates import MachineRates

#: Ops that move nothing across the memory bus have no place on the axis; they stand here.
_BEYOND = 3e4
_FIRST, _LAST = 0.3, 1e4
_MARKERS = "os^DvPX*h<>dp"


@dataclass(frozen=True, slots=True)
class Point:
    """One op. share: of its step. roof: share of its own limit, None for an op without work of the
    model. intensity: operations per byte, None where no byte must move. Seconds, operations and
    seconds at best: of all `count` together, medians."""

    name: str
    count: int
    share: Interval
    roof: Interval | None
    intensity: float | None
    operations: int
    seconds: float
    limit_s: float

    @property
    def kind(self) -> str:
        """What stands before its place: "matmul Q4_1"."""
        return self.name.split(":")[0]

    @property
    def speed(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    @property
    def allowed(self) -> float:
        """Operations per second at best."""
        return self.operations / self.limit_s if self.limit_s else 0.0


def of_kinds(rows: Sequence[OpRow]) -> tuple[OpRow, ...]:
    """Rows of ops → rows of their kinds."""
    kinds: dict[str, list[OpRow]] = {}
    for row in rows:
        kinds.setdefault(row.name.split(":")[0], []).append(row)
    return tuple(
        OpRow(
            name,
            count=sum(row.count for row in group),
            seconds=sum(row.seconds for row in group),
            share=sum(row.share for row in group),
            num_bytes=sum(row.num_bytes for row in group),
            operations=sum(row.operations for row in group),
            limit_s=sum(row.limit_s for row in group),
        )
        for name, group in kinds.items()
    )


def points_of(profiles: Sequence[Sequence[OpRow]]) -> list[Point]:
    """One per name, the slowest first. profiles: rows of every repetition."""
    points = []
    for first in profiles[0]:
        rows = [row for rows in profiles for row in rows if row.name == first.name]
        roofs = [row.of_limit for row in rows if row.of_limit is not None]
        points.append(
            Point(
                first.name,
                first.count,
                share=median_interval([row.share for row in rows]),
                roof=median_interval(roofs) if roofs else None,
                intensity=first.operations / first.num_bytes if first.num_bytes else None,
                operations=first.operations,
                seconds=median_interval([row.seconds for row in rows]).value,
                limit_s=median_interval([row.limit_s for row in rows]).value,
            )
        )
    return sorted(points, key=lambda point: -point.seconds)


def table_of(name: str, points: Sequence[Point]) -> Table:
    """Every op, predicted and measured."""
    return Table(
        name,
        ["op", "count", "operations per byte", "predicted ms", "measured ms", "share of the step",
         "Gop/s", "share of its roof", "low", "high"],
        [
            [p.name, p.count, p.intensity, 1e3 * p.limit_s if p.roof else None, 1e3 * p.seconds,
             p.share.value, p.speed / 1e9 if p.operations else None,
             *(p.roof.ends if p.roof else (None, None, None))]
            for p in points
        ],
        "An op stands for those of all layers together. Predicted: at best, from its bytes and "
        "operations. Operations per byte: — where no byte must cross the memory bus. Ops without "
        "work of the model (preparing activations) have no roof.",
    )  # fmt: skip


def draw(
    lab: Lab, points: Mapping[str, Sequence[Point]], rates: MachineRates, caption: str, alt: str
) -> None:
    """roof.png: a panel per step. points: by the step's name."""
    looks = _looks([p for step in points.values() for p in _shown(step)])
    with lab.figure("roof", caption, alt, columns=len(points)) as (figure, axes):
        figure.set_size_inches(11.0, 5.4)
        for axis, (title, step) in zip(axes, points.items(), strict=True):
            _draw_roof(axis, rates)
            for point in _shown(step):
                _draw_point(axis, point, *looks[point.name])
            axis.set_title(title, fontsize=10)
        axes[0].set_ylabel("operations per second")
        handles = {
            label: handle
            for axis in axes
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8
        )


def _shown(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.roof and p.operations]


def _looks(points: Sequence[Point]) -> dict[str, tuple[str, str]]:
    """Name → (colour of its kind, marker of its own)."""
    kinds = list(dict.fromkeys(p.kind for p in points))
    names = list(dict.fromkeys(p.name for p in points))
    return {
        p.name: (
            STYLES[kinds.index(p.kind) % len(STYLES)][0],
            _MARKERS[names.index(p.name) % len(_MARKERS)],
        )
        for p in points
    }


def _draw_roof(axis: Any, rates: MachineRates) -> None:
    bandwidth = rates.read_bytes_per_s
    for name, peak, dash in (
        ("int8", rates.int8_ops_per_s, "-"),
        ("bf16", rates.bf16_ops_per_s, "--"),
        ("f32", rates.f32_ops_per_s, ":"),
    ):
        axis.plot(
            [_FIRST, peak / bandwidth, _LAST], [_FIRST * bandwidth, peak, peak],
            color="#666666", linestyle=dash, marker="", linewidth=1.2, label=f"{name} roof",
        )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = (1, 10, 100, 1000)
    axis.set_xticks([*ticks, _BEYOND], [*map(str, ticks), "no byte"])
    axis.set_xlabel("operations per byte")


def _draw_point(axis: Any, point: Point, colour: str, marker: str) -> None:
    """Hollow: predicted, what its roof allows. Filled: measured."""
    x = point.intensity or _BEYOND
    look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": ""}
    axis.plot(
        [x, x], [point.speed, point.allowed], color=colour, linewidth=0.8, marker="", linestyle="-"
    )
    axis.plot([x], [point.allowed], markerfacecolor="none", **look)
    axis.plot([x], [point.speed], label=point.name, **look)
