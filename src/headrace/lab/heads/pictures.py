"""The figure of the experiment: learning, what it ends with, and what it costs to serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.lab.heads.findings import Outcome, Runs
from headrace.lab.heads.variants import NAMES
from headrace.lab.plots import error_bars, style
from headrace.lab.statistics import Interval, median_interval

CAPTION = (
    "Learning English and recall (training loss: mean of the seeds, their range as a band), "
    "validation loss with 95 % intervals over the seeds, and decoding on the native path."
)
ALT = (
    "Four panels: training loss of the language models over steps; training loss of the recall "
    "models over steps; validation losses with error bars; decode speed over cache bytes per token"
)


def draw(axes: Any, outcome: Outcome) -> None:
    """axes: two rows of two."""
    _learning(axes[0][0], outcome.text, "English text")
    _learning(axes[0][1], outcome.recall, "recall")
    _values(axes[1][0], outcome.losses())
    _serving(axes[1][1], outcome)


def _learning(axes: Any, runs: Runs, title: str) -> None:
    for i, name in enumerate(NAMES):
        steps, low, mean, high = _band([done.history for done in runs[name]])
        look = style(i) | {"marker": ""}
        axes.plot(steps, mean, label=name, **look)
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set(title=title, xlabel="step", ylabel="training loss, nats")
    axes.legend()


def _values(axes: Any, values: Mapping[str, Interval]) -> None:
    for i, name in enumerate(NAMES):
        axes.errorbar([i], [values[name].value], yerr=error_bars([values[name]]), markersize=7,
                      **style(i))  # fmt: skip
    axes.set(title="validation loss", ylabel="nats per token", xlim=(-0.6, len(NAMES) - 0.4))
    axes.set_xticks(range(len(NAMES)), NAMES)


def _serving(axes: Any, outcome: Outcome) -> None:
    cache = [outcome.speeds[name].cache_bytes for name in NAMES]
    bounds = [_bound(outcome, name) for name in NAMES]
    axes.plot(cache, bounds, color="#777777", linestyle=":", marker="_", label="bound")
    for i, (name, found) in enumerate(outcome.decoding().items()):
        axes.errorbar([cache[i]], [found.value], yerr=error_bars([found]), markersize=7, label=name,
                      **style(i))  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(min(cache) / 1.4, max(cache) * 1.4)
    axes.set_xticks(cache, [f"{value:,.0f}" for value in cache])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(title="decoding", xlabel="cache bytes per token", ylabel="tokens/s")
    axes.legend()


def _bound(outcome: Outcome, name: str) -> float:
    speed = outcome.speeds[name]
    return median_interval(
        [value / share for value, share in zip(speed.tok_per_s, speed.of_bound, strict=True)]
    ).value


def _band(
    curves: Sequence[Sequence[tuple[int, float]]],
) -> tuple[list[int], list[float], list[float], list[float]]:
    """(steps, lowest, mean, highest) over the seeds, which report at the same steps."""
    steps = [step for step, _ in curves[0]]
    columns = list(zip(*([loss for _, loss in curve] for curve in curves), strict=True))
    means = [sum(column) / len(column) for column in columns]
    return steps, [min(c) for c in columns], means, [max(c) for c in columns]
