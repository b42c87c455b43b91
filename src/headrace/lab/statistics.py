"""Intervals: what a handful of measurements allow to be said. Pure functions, no plotting.

Every interval aims at 95 %. With few samples it cannot be had, and `what` says what it is instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
import numpy.typing as npt

#: Two-sided 95 % quantiles of Student's t for 1, 2, … 30 degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """value: the estimate; low ≤ value ≤ high; n: samples behind it; what: which interval it is."""

    value: float
    low: float
    high: float
    n: int
    what: str

    def __format__(self, spec: str) -> str:
        """ "12.3 (11.9 … 12.8)": every number by the format of a number."""
        return f"{self.value:{spec}} ({self.low:{spec}} … {self.high:{spec}})"

    @property
    def ends(self) -> tuple[float, float, float]:
        """(value, low, high), the columns of a table."""
        return self.value, self.low, self.high

    def scaled(self, factor: float) -> Interval:
        """In another unit. factor: above 0."""
        return Interval(
            factor * self.value, factor * self.low, factor * self.high, self.n, self.what
        )

    def over(self, other: Interval) -> Interval:
        """Quotient of two positive figures that were not measured in pairs: as wide as their ends
        allow, so it holds the quotient whenever both hold their own."""
        return Interval(
            self.value / other.value,
            self.low / other.high,
            self.high / other.low,
            min(self.n, other.n),
            f"quotient of the ends of two ({self.what}; {other.what})"
            if self.what != other.what
            else f"quotient of the ends of two: {self.what}",
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values; a number that is not finite becomes None."""
        return {
            "value": _finite(self.value),
            "low": _finite(self.low),
            "high": _finite(self.high),
            "n": self.n,
            "what": self.what,
        }


def exact(value: float, what: str = "counted, not sampled") -> Interval:
    """A figure without uncertainty: a count, a closed form."""
    return Interval(value, value, value, 1, what)


def median_interval(samples: Sequence[float]) -> Interval:
    """The median, and the pair of order statistics that holds it with at least 95 % (binomial);
    below six samples the range, whose chance of holding it is 1 − 2^(1−n). One sample tells nothing
    of its own error: ±∞."""
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        raise ValueError("no samples")
    if n == 1:
        return Interval(ordered[0], -math.inf, math.inf, 1, "one sample")
    outside = 0.0
    rank = 0  # of the lower end
    for k in range(n // 2):
        outside += float(math.comb(n, k)) / 2**n
        if 2 * outside > 0.05:
            break
        rank = k
    if n >= 6:
        what = "median, 95 % interval of order statistics"
    else:
        what = f"median and range ({100 * (1 - 2 ** (1 - n)):.0f} %)"
    return Interval(median(ordered), ordered[rank], ordered[n - 1 - rank], n, what)


def mean_interval(samples: Sequence[float]) -> Interval:
    """The mean and Student's 95 % interval. Needs two samples for a width: one gives ±∞."""
    n = len(samples)
    if n == 0:
        raise ValueError("no samples")
    mean = fmean(samples)
    half = math.inf if n == 1 else t95(n - 1) * stdev(samples) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n, "mean, Student's 95 % interval")


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """over ÷ under of pairs measured in turns: the median of the ratios."""
    return median_interval([a / b for a, b in zip(over, under, strict=True)])


def share_interval(successes: int, n: int) -> Interval:
    """A share and Wilson's 95 % interval (Wilson 1927)."""
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} of {n}")
    z2 = 1.96**2
    share = successes / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = 1.96 * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    low, high = max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))
    return Interval(share, low, high, n, "share, Wilson's 95 % interval")


@dataclass(frozen=True, slots=True)
class PowerFit:
    """y ≈ factor · x^exponent, by least squares of the logarithms."""

    exponent: Interval
    factor: float

    def at(self, x: float) -> float:
        return float(self.factor * x**self.exponent.value)


def fit_power(x: Sequence[float], y: Sequence[float]) -> PowerFit:
    """Growth: the exponent with Student's 95 % interval from the residuals of the fit. Of at least
    two different positive x; with just two the interval is infinite."""
    slope, intercept = _line([math.log(v) for v in x], [math.log(v) for v in y])
    return PowerFit(slope, math.exp(intercept))


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[Interval, float]:
    """(slope with its 95 % interval, intercept) of the least-squares line."""
    return _line(x, y)


def largest(errors: Iterable[float]) -> float:
    """The largest error of a check, 0 of none; one that is not a number counts as infinite, where
    max() would pass over it."""
    return max((math.inf if math.isnan(error) else error for error in errors), default=0.0)


def resolved(a: Interval, b: Interval) -> bool:
    """Whether two intervals are disjoint: only then may one be said to be larger."""
    return a.high < b.low or b.high < a.low


def t95(degrees: int) -> float:
    """Student's two-sided 95 % quantile; above 30 degrees of freedom within 0.1 %."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = 1.959964  # Cornish-Fisher expansion in 1 / degrees
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[Interval, float]:
    xs, ys = np.asarray(x, np.float64), np.asarray(y, np.float64)
    n = len(xs)
    spread = float(((xs - xs.mean()) ** 2).sum()) if n else 0.0
    if n != len(ys) or spread == 0:
        raise ValueError("a line needs two different x, and one y for each")
    slope = float(((xs - xs.mean()) * (ys - ys.mean())).sum() / spread)
    intercept = float(ys.mean() - slope * xs.mean())
    residual = float(((ys - intercept - slope * xs) ** 2).sum())
    half = math.inf if n < 3 else t95(n - 2) * math.sqrt(residual / (n - 2) / spread)
    what = "least squares, Student's 95 % interval"
    return Interval(slope, slope - half, slope + half, n, what), intercept


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def chi_square(
    counts: npt.NDArray[np.int64], p: npt.NDArray[np.float64], least: float = 8.0
) -> tuple[float, int]:
    """(p-value, cells) of Pearson's test that counts [n] were drawn with probabilities p [n]; cells
    that expect fewer than `least` are one cell."""
    expected = p * counts.sum()
    large = expected >= least
    observed, wanted = list(counts[large]), list(expected[large])
    if (~large).any():
        observed.append(counts[~large].sum())
        wanted.append(expected[~large].sum())
    if wanted[-1] < least and len(wanted) > 1:  # the rest joins the smallest
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    x = sum((o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True) if e > 0)
    return chi_square_p(float(x), max(1, len(wanted) - 1)), len(wanted)


def chi_square_p(statistic: float, degrees: int) -> float:
    """The chance of a χ² at least as large, with that many degrees of freedom: the regularised
    upper incomplete gamma function Q(degrees ÷ 2, statistic ÷ 2), by its series or its continued
    fraction (Abramowitz and Stegun 6.5.29 and 6.5.31)."""
    if degrees < 1 or statistic < 0:
        raise ValueError(f"χ² {statistic} with {degrees} degrees of freedom")
    a, x = degrees / 2, statistic / 2
    if x == 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > 1e-16 * total:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - front * total)
    b = x + 1 - a  # Lentz's method
    c, d = 1e300, 1 / b
    fraction = d
    for k in range(1, 10_000):
        factor = k * (a - k)
        b += 2
        d = 1 / (factor * d + b)
        c = b + factor / c
        fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction
