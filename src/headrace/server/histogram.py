"""Histogram: counts of observations by size, and the bucket borders that are used.

One thread writes; any thread may read, because `snapshot` copies the counts at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

#: Seconds. The coarse borders are those that existing dashboards were made for; the fine ones below
#: them tell small models on a CPU apart.
TTFT_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
    10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_S = (
    0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05, 0.075, 0.1,
    0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0,
    30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SAMPLES = (1, 2, 5, 10, 20)


def one_two_five(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, … up to the limit, at least 1."""
    steps = [m * 10**e for e in range(len(str(max(limit, 1)))) for m in (1, 2, 5)]
    return tuple(step for step in steps if step <= max(limit, 1))


class Histogram:
    """bounds: upper borders of the buckets, inclusive, ascending; one more bucket has no border."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Counts an observation, or several of the same value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)

    def snapshot(self) -> tuple[list[tuple[str, float]], float]:
        """(border, observations up to it) with Prometheus's spelling, and the sum of all."""
        counts, total = self.counts.copy(), self.total
        result, so_far = [], 0
        for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
            so_far += count
            result.append(("+Inf" if bound == float("inf") else str(float(bound)), float(so_far)))
        return result, total
