"""When requests are due: the offsets of an open loop, in seconds from its start. Pure."""

from __future__ import annotations

import math
import random

from headrace.errors import UsageError

#: Below them, gaps between requests are no longer times that a clock could tell.
MIN_RATE, MIN_BURSTINESS = 1e-6, 1e-3


def check_rate(rate: float, burstiness: float) -> None:
    """Raises UsageError for what is no rate (inf = all at once) or no shape."""
    if not rate >= MIN_RATE:
        raise UsageError(f"--request-rate must be at least {MIN_RATE:g}, or inf, not {rate:g}.")
    if not (burstiness >= MIN_BURSTINESS and math.isfinite(burstiness)):
        raise UsageError(
            f"--burstiness must be at least {MIN_BURSTINESS:g} and finite, not {burstiness:g}."
        )


def offsets(count: int, rate: float, burstiness: float, rng: random.Random) -> list[float]:
    """`count` due times, the first at 0. rate: requests per second; inf = all at 0. Gaps are
    gamma-distributed with mean 1/rate: burstiness 1 = exponential (a Poisson process), below 1
    burstier, above 1 more even (inf would be a metronome)."""
    check_rate(rate, burstiness)
    if math.isinf(rate):
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        times.append(now)
        now += rng.gammavariate(burstiness, 1 / (rate * burstiness))
    return times
