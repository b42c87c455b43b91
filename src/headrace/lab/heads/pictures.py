"""The figure of the experiment: learning, what it ends with, and what it costs to serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.lab.heads.variants import NAMES
from headrace.lab.plots import style
from headrace.lab.statistics import Interval
from headrace.lab.training.jobs import Done

#: (step, loss) of one seed.
Curve = Sequence[tuple[int, float]]


def draw_learning(axes: Any, runs: Mapping[str, Sequence[Done]], title: str, unit: str) -> None:
    """Training loss over steps: the mean of the seeds as a line, their range as a band."""
    for i, name in enumerate(NAMES):
        steps, low, mean, high = _band([done.history for done in runs[name]])
        look = style(i) | {"marker": ""}
        axes.plot(steps, mean, label=name, **look)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel="step", ylabel=unit)
    axes.legend()


def draw_values(axes: Any, values: Mapping[str, Interval], title: str, unit: str) -> None:
    """One value with its interval per variant; the axis need not start at 0."""
    for i, name in enumerate(NAMES):
        found = values[name]
        errors = [[found.value - found.low], [found.high - found.value]]
        axes.errorbar([i], [found.value], yerr=errors, markersize=7, **style(i))
    axes.set(title=title, ylabel=unit, xlim=(-0.6, len(NAMES) - 0.4))
    axes.set_xticks(range(len(NAMES)), NAMES)


def draw_serving(
    axes: Any, cache: Mapping[str, float], speeds: Mapping[str, Interval],
    bounds: Mapping[str, float], title: str,
) -> None:  # fmt: skip
    """Decode speed over cache bytes per token, with the bound."""
    at = [cache[name] for name in NAMES]
    axes.plot(at, [bounds[n] for n in NAMES], color="#777777", linestyle=":", marker="_",
              label="bound")  # fmt: skip
    for i, name in enumerate(NAMES):
        found = speeds[name]
        errors = [[found.value - found.low], [found.high - found.value]]
        axes.errorbar([cache[name]], [found.value], yerr=errors, markersize=7, label=name,
                      **style(i))  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(at, [f"{value:,.0f}" for value in at])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(title=title, xlabel="cache bytes per token", ylabel="tokens/s")
    axes.legend()


def _band(curves: Sequence[Curve]) -> tuple[list[int], list[float], list[float], list[float]]:
    """(steps, lowest, mean, highest) over the seeds, which report at the same steps."""
    steps = [step for step, _ in curves[0]]
    columns = list(zip(*([loss for _, loss in curve] for curve in curves), strict=True))
    means = [sum(column) / len(column) for column in columns]
    return steps, [min(c) for c in columns], means, [max(c) for c in columns]
