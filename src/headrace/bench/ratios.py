"""Medians and ratios with their spread.

A ratio compares two engines repetition by repetition: the i-th value of one with the i-th of the
other, which were measured one right after the other. What the machine does slowly (a busy
neighbour, heat) then hits both and cancels.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """median, smallest and largest of some values."""

    median: float
    min: float
    max: float

    def to_dict(self) -> dict[str, float]:
        return {"median": self.median, "min": self.min, "max": self.max}


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread | None:
    """Spread of ours[i] / theirs[i] over the repetitions that both finished; None without one."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=False) if b > 0]
    return spread(pairs) if pairs else None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts share from their start."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
