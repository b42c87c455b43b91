"""Distributions of the next token: entropy over temperature, and what each stage keeps.

Takes logits as they come, and knows neither where in a text they stand nor what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import numpy.typing as npt

from headrace.engine import sampler
from headrace.engine.params import SamplingParams
from headrace.engine.trace import SamplerTrace
from headrace.lab.lab import Lab
from headrace.lab.plots import style
from headrace.lab.sampling.definition import entropy_slope
from headrace.lab.sampling.inputs import EVERY, Rows
from headrace.lab.statistics import mean_interval
from headrace.lab.values import Findings, Table

_TEMPERATURES = tuple(round(0.2 * i, 1) for i in range(1, 11))
_TOP_K = (1, 5, 20, 50, 200)
_TOP_P = (0.5, 0.8, 0.9, 0.95, 0.99)
_MIN_P = (0.3, 0.1, 0.05, 0.02, 0.01)


def measure_entropy(lab: Lab, rows: Rows, findings: Findings) -> None:
    def entropies(temperature: float) -> list[float]:
        traces = _traces(rows, SamplingParams(temperature=temperature))
        return [trace.stages[-1].after.entropy for trace in traces]

    curves = np.array([entropies(t) for t in _TEMPERATURES])
    step = 1e-3
    ratios = [
        (high - low) / (2 * step) / entropy_slope(z.astype(np.float64), 1.0)
        for high, low, z in zip(entropies(1 + step), entropies(1 - step), rows, strict=True)
    ]
    findings.measured["slope"] = mean_interval(ratios)
    means = [mean_interval(list(curve)) for curve in curves]
    hottest = _TEMPERATURES[-1]
    findings.measured["deficit"] = mean_interval(
        [
            (math.log(len(z)) - h) / (math.log(len(z)) - _normal_law(z, hottest))
            for z, h in zip(rows, curves[-1], strict=True)
        ]
    )
    findings.tables.append(
        Table(
            "entropy over temperature",
            ["T", "mean, nats", "low", "high", "least", "most", "as if normal"],
            [
                [t, m.value, m.low, m.high, float(c.min()), float(c.max()),
                 fmean(max(0.0, _normal_law(z, t)) for z in rows)]
                for t, m, c in zip(_TEMPERATURES, means, curves, strict=True)
            ],
            f"{len(rows)} positions, every {EVERY}th of one text; ln V = "
            f"{math.log(rows.shape[1]):.2f} nats. The interval is that of the mean over positions, "
            "as if these were independent.",
        )
    )  # fmt: skip
    falls = int((np.diff(curves, axis=0) < 0).sum())
    findings.conclude(
        f"Entropy fell {falls} times in {np.diff(curves, axis=0).size} steps of 0.2 in "
        "temperature; by its formula it never does.",
        falls == 0,
    )
    caption = (
        "Entropy of the next token over temperature: thin lines of single positions, the mean of "
        "all, and what normal logits of the same variance would have."
    )
    alt = "Entropy over temperature: single positions, their mean, the normal law, and ln V"
    with lab.figure("entropy", caption, alt) as (_, axis):
        for curve in curves.T[:: max(1, len(rows) // 12)]:
            axis.plot(
                _TEMPERATURES, curve, color="#999999", linewidth=0.6, marker="", linestyle="-"
            )
        axis.plot(_TEMPERATURES, [m.value for m in means], label="mean", **style(0))
        law = [fmean(max(0.0, _normal_law(z, t)) for z in rows) for t in _TEMPERATURES]
        axis.plot(_TEMPERATURES, law, label="normal logits", **style(1))
        axis.axhline(
            math.log(rows.shape[1]), color="#000000", linestyle=":", marker="", label="ln V"
        )
        axis.set_xlabel("temperature")
        axis.set_ylabel("entropy, nats")
        axis.legend(loc="lower right")


def _normal_law(z: npt.NDArray[np.float32], temperature: float) -> float:
    return math.log(len(z)) - float(z.astype(np.float64).var()) / (2 * temperature**2)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stage's parameter, and what it keeps at each position: candidates, probability mass."""

    value: float
    counts: Sequence[int]
    masses: Sequence[float]


def measure_sets(lab: Lab, rows: Rows, findings: Findings) -> None:
    table_rows: list[list[str | float | int | None]] = []
    sizes: dict[str, list[_Kept]] = {}
    for name, values in (("top_k", _TOP_K), ("top_p", _TOP_P), ("min_p", _MIN_P)):
        for value in values:
            counts, masses = [], []
            for trace in _traces(rows, SamplingParams.from_dict({name: value})):
                stage = next(s for s in trace.stages if s.name == name)
                counts.append(stage.after.num_candidates)
                # The first candidate's share grows by 1 ÷ what is kept.
                masses.append(stage.before.top[0][1] / stage.after.top[0][1])
            sizes.setdefault(name, []).append(_Kept(value, counts, masses))
            table_rows.append(
                [f"{name} {value}", int(np.median(counts)), min(counts), max(counts),
                 fmean(masses), min(masses), max(masses)]
            )  # fmt: skip
    findings.tables.append(
        Table(
            "candidates",
            ["stage", "candidates, median", "fewest", "most", "mass kept, mean", "least", "most "],
            table_rows,
            f"T = 1, {len(rows)} positions.",
        )
    )
    of_p, of_k = sizes["top_p"][2].counts, sizes["top_k"][3].masses
    findings.conclude(
        f"top_p 0.9 keeps between {min(of_p)} and {max(of_p)} candidates on one text: the set "
        "follows the position. top_k 50 keeps 50, and between "
        f"{min(of_k):.2f} and {max(of_k):.2f} of the mass."
    )
    caption = (
        "Candidates (left) and probability mass (right) that each stage keeps: median and range."
    )
    alt = "Left: numbers of candidates per stage, log axis; right: kept probability mass"
    with lab.figure("sets", caption, alt, columns=2) as (_, axes):
        for series, (name, points) in enumerate(sizes.items()):
            x = np.arange(len(points)) + 6 * series
            for axis, found in (
                (axes[0], [p.counts for p in points]),
                (axes[1], [p.masses for p in points]),
            ):
                middle = [float(np.median(own)) for own in found]
                low = [m - min(own) for m, own in zip(middle, found, strict=True)]
                high = [max(own) - m for m, own in zip(middle, found, strict=True)]
                axis.errorbar(x, middle, yerr=[low, high], label=name, **style(series))
        labels = [f"{p.value:g}" for points in sizes.values() for p in points]
        ticks = [i + 6 * s for s, points in enumerate(sizes.values()) for i in range(len(points))]
        for axis in axes:
            axis.set_xticks(ticks, labels, fontsize=8, rotation=60)
            axis.legend()
        axes[0].set_yscale("log")
        axes[0].set_ylabel("candidates")
        axes[1].set_ylabel("mass kept")


def _traces(rows: Rows, params: SamplingParams) -> Iterator[SamplerTrace]:
    """The native sampler's trace of every row."""
    params = params.replace(trace=1)
    states = [sampler.make_state(params, [], seed=1) for _ in rows]
    for drawn in sampler.sample(rows, states, [0] * len(rows), rows.shape[1]):
        assert drawn.trace is not None
        yield drawn.trace
