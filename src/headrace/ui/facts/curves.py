"""Curves of one position: what each sampling parameter alone would keep. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.ui.facts.charts import Line
from headrace.ui.facts.resample import Known, Stage, Wish, resample

TEMPERATURES = tuple(i / 20 for i in range(2, 61))
TOP_P = (*(i / 50 for i in range(1, 50)), 0.99, 0.995, 0.999)
MIN_P = (0.001, 0.002, 0.005, *(i / 100 for i in range(1, 51)))
TOP_K = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)


def entropy(known: Known) -> Line:
    """Nats over temperature; exact at the trace's temperatures, smooth between them."""
    return Line("entropy", [(t, known.log_normaliser(t)[1]) for t in TEMPERATURES])


def kept_by_top_p(known: Known, temperature: float) -> Line:
    """Candidates left; None where the trace does not tell how many."""
    return Line(
        "top-p",
        [(p, _number(resample(known, Wish(temperature, top_p=p))[3])) for p in TOP_P],
    )


def kept_by_min_p(known: Known, temperature: float) -> Line:
    """As kept_by_top_p."""
    return Line(
        "min-p",
        [(p, _number(resample(known, Wish(temperature, min_p=p))[4])) for p in MIN_P],
    )


def mass_of_top_k(known: Known, temperature: float) -> Line:
    """The share of the whole that the k most probable candidates have."""
    first = resample(known, Wish(temperature))[0].probabilities
    points: list[tuple[float, float | None]] = [
        (float(k), min(math.fsum(first[:k]), 1.0)) for k in TOP_K if k <= len(first)
    ]
    return Line("top-k", points)


def distinct(ids: Sequence[int], n: int) -> float | None:
    """Different runs of n tokens as a share of all; 1 = nothing comes twice. None: too short."""
    runs = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(runs)) / len(runs) if runs else None


def _number(stage: Stage) -> float | None:
    low, high = stage.num_candidates
    return float(low) if low == high else None
