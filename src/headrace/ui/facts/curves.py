"""Curves of one position: what each sampling parameter alone would keep. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.ui.facts.charts import Line
from headrace.ui.facts.resample import Known, Wish, resample

TEMPERATURES = tuple(i / 20 for i in range(2, 61))
TOP_P = (*(i / 50 for i in range(1, 50)), 0.99, 0.995, 0.999)
MIN_P = (0.001, 0.002, 0.005, *(i / 100 for i in range(1, 51)))
TOP_K = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
FILTERS: Mapping[str, Sequence[float]] = {"top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}


def entropy(known: Known) -> Line:
    """Nats over temperature; exact at the trace's temperatures, smooth between them."""
    return Line("entropy", [(t, known.log_normaliser(t)[1]) for t in TEMPERATURES])


def kept(known: Known, temperature: float, name: str) -> tuple[Line, Line]:
    """What one filter ("top_k", "top_p", "min_p") alone leaves, over its values: how many
    candidates, and their share of the whole. None where the trace does not tell."""
    number, mass = list[tuple[float, float | None]](), list[tuple[float, float | None]]()
    for value in FILTERS[name]:
        change: dict[str, Any] = {name: value}
        stages = resample(known, replace(Wish(temperature), **change))
        last, first = stages[-1], stages[0].probabilities
        low, high = last.num_candidates
        is_known = low == high and not last.tail_mass[1]
        left = [p for p, there in zip(first, last.probabilities, strict=True) if there]
        number.append((float(value), float(low) if is_known else None))
        mass.append((float(value), min(math.fsum(left), 1.0) if is_known else None))
    return Line("candidates", number), Line("their mass", mass)


def distinct(ids: Sequence[int], n: int) -> float | None:
    """Different runs of n tokens as a share of all; 1 = nothing comes twice. None: too short."""
    runs = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(runs)) / len(runs) if runs else None


def words(title: str, line: Line) -> str:
    """Five points of a line, for those who do not see it."""
    told = [(x, y) for x, y in line.points if y is not None]
    some = told[:: max(len(told) // 5, 1)]
    return f"{title}: {'; '.join(f'{y:.3g} at {x:g}' for x, y in some)}."
