"""How figures look: one palette that survives colour blindness and grey printers, small files.

Colours are Okabe and Ito's (2008); every series also has its own marker and dash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.lab.statistics import Interval

#: (colour, marker, line) of series 0, 1, …
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
    ("#E69F00", "v", "-"),
    ("#56B4E9", "P", "--"),
    ("#000000", "X", "-."),
)
_SETTINGS: dict[str, Any] = {
    "figure.dpi": 110,
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.0,
    "errorbar.capsize": 3.0,
    "svg.hashsalt": "headrace",
}


def style(series: int) -> dict[str, Any]:
    """Keyword arguments of matplotlib's plot and errorbar for a series."""
    colour, marker, line = STYLES[series % len(STYLES)]
    return {"color": colour, "marker": marker, "linestyle": line}


def error_bars(intervals: Sequence[Interval]) -> list[list[float]]:
    """The yerr of matplotlib's errorbar: how far each interval reaches below and above its
    value."""
    return [[i.value - i.low for i in intervals], [i.high - i.value for i in intervals]]


@contextmanager
def figure(path: Path, rows: int = 1, columns: int = 1) -> Iterator[tuple[Any, Any]]:
    """(figure, axes) to draw on; a PNG at `path` when the block ends without an error.

    axes: one, or an array of them as plt.subplots gives it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from cycler import cycler
    from matplotlib import pyplot as plt

    colours, markers, lines = zip(*STYLES, strict=True)
    cycle = cycler(color=colours, marker=markers, linestyle=lines)
    settings: Any = _SETTINGS | {"axes.prop_cycle": cycle}
    with plt.rc_context(settings):
        fig, axes = plt.subplots(
            rows, columns, figsize=(min(5.2 * columns, 11.0), 3.6 * rows), layout="constrained"
        )
        try:
            yield fig, axes
            fig.savefig(path, metadata={"Software": "", "Creation Time": ""})
        finally:
            plt.close(fig)
