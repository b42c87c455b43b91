"""Resample: what other sampling parameters would have made of a distribution that was traced. Pure.

A trace names the N most probable candidates with their logits, and knows the normaliser of *all*
candidates on a grid of temperatures. Every stage keeps a prefix of the candidates in order of
probability, so much is exact without the others; what is not comes with its limits and a reason.

    named candidates          the rest: number and mass known, order not
    p1 ≥ p2 ≥ … ≥ pN      |   each ≤ pN
    ├── kept: m of them ──┤   ├── kept: mass in [low, high], number in [low, high] ──┤

Definitions of the stages: docs/sampling.md, in their default order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

#: A sum may fall short of its border by rounding alone.
_SLACK = 1e-12
#: Between two temperatures of the grid; the largest error that tests/ui/test_resample.py allows.
BETWEEN_ERROR = 2e-3


@dataclass(frozen=True, slots=True)
class Known:
    """One traced position. logits: of the named ids, highest first, after bias and penalties.
    temperatures, log_normalisers, entropies: the grid, ascending, over all num_candidates."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]
    num_candidates: int
    temperatures: tuple[float, ...]
    log_normalisers: tuple[float, ...]
    entropies: tuple[float, ...]

    @classmethod
    def from_trace(cls, trace: Mapping[str, Any]) -> Known:
        """Reads one entry of `sampler_trace`. Raises ValueError when it lacks logits or the grid,
        as traces of other servers do."""
        try:
            base, grid = trace["stages"][1]["after"], trace["grid"]
            return cls(
                tuple(int(one["id"]) for one in base["top"]),
                tuple(float(one["logit"]) for one in base["top"]),
                int(base["num_candidates"]),
                tuple(map(float, grid["temperature"])),
                tuple(map(float, grid["log_normaliser"])),
                tuple(map(float, grid["entropy"])),
            )
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"this trace cannot be recomputed: it has no {error}") from None

    @property
    def names_all(self) -> bool:
        return len(self.ids) >= self.num_candidates

    def log_normaliser(self, temperature: float) -> tuple[float, float, bool]:
        """ln Σ exp(z/T) over all candidates, the entropy in nats, and whether both are exact.

        Between the grid's temperatures: the cubic in 1/T with the right values and slopes, for
        d lnZ / d(1/T) = (lnZ − H)·T.
        """
        if self.names_all:
            scaled = [z / temperature for z in self.logits]
            log_z = scaled[0] + math.log(sum(math.exp(s - scaled[0]) for s in scaled))
            mean = sum(math.exp(s - log_z) * s for s in scaled)
            return log_z, max(log_z - mean, 0.0), True
        grid = self.temperatures
        at = bisect_left(grid, temperature - 1e-9)
        if at < len(grid) and abs(grid[at] - temperature) < 1e-9:
            return self.log_normalisers[at], self.entropies[at], True
        at = min(max(at, 1), len(grid) - 1)
        return (*self._between(at - 1, at, temperature), False)

    def _between(self, left: int, right: int, temperature: float) -> tuple[float, float]:
        b0, b1, b = 1 / self.temperatures[left], 1 / self.temperatures[right], 1 / temperature
        a0, a1 = self.log_normalisers[left], self.log_normalisers[right]
        s0 = (a0 - self.entropies[left]) / b0
        s1 = (a1 - self.entropies[right]) / b1
        h = b1 - b0
        t = (b - b0) / h
        value = (
            a0 * (1 + 2 * t) * (1 - t) ** 2
            + s0 * h * t * (1 - t) ** 2
            + a1 * t**2 * (3 - 2 * t)
            - s1 * h * t**2 * (1 - t)
        )
        slope = (a1 - a0) * 6 * t * (1 - t) / h + s0 * (1 - t) * (1 - 3 * t) + s1 * t * (3 * t - 2)
        return value, max(value - b * slope, 0.0)


@dataclass(frozen=True, slots=True)
class Wish:
    """Sampling parameters, named and bounded as in a request. temperature 0 = greedy."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The distribution after one stage. probabilities: of the named candidates, in the order of
    `Known.ids`, 0 = removed. A pair (low, high) holds the truth; equal ends are exact.
    why: what makes the figures approximate; empty = exact."""

    name: str
    active: bool
    probabilities: tuple[float, ...]
    num_candidates: tuple[int, int]
    tail_mass: tuple[float, float]
    entropy: float
    why: tuple[str, ...]

    @property
    def num_named(self) -> int:
        """How many of the named candidates are left; they are the first ones."""
        return sum(p > 0 for p in self.probabilities)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is left so far. Masses are those of the whole distribution at the temperature."""

    named: int
    tail_low: float
    tail_high: float
    num_low: int
    num_high: int
    why: tuple[str, ...] = ()

    def because(self, reason: str, **changes: Any) -> _Kept:
        return replace(self, why=(*self.why, reason), **changes)

    def only(self, named: int) -> _Kept:
        """The first so many named candidates and nothing else."""
        return replace(
            self, named=named, tail_low=0.0, tail_high=0.0, num_low=named, num_high=named
        )


def resample(known: Known, wish: Wish) -> tuple[Stage, ...]:
    """The stages temperature, top_k, top_p, min_p, each with what it leaves."""
    if wish.temperature == 0 or wish.top_p == 0:
        greedy = (1.0,) + (0.0,) * (len(known.ids) - 1)
        first = Stage("temperature", True, greedy, (1, 1), (0.0, 0.0), 0.0, ())
        return (first, *(replace(first, name=n, active=False) for n in ("top_k", "top_p", "min_p")))
    log_z, entropy, is_exact = known.log_normaliser(wish.temperature)
    p = [math.exp(z / wish.temperature - log_z) for z in known.logits]
    tail = 0.0 if known.names_all else max(1.0 - math.fsum(p), 0.0)
    kept = _Kept(len(p), tail, tail, known.num_candidates, known.num_candidates)
    if not is_exact:
        kept = kept.because(
            f"temperature {wish.temperature:g} lies between two that the trace knows: its "
            f"normaliser is interpolated, within {BETWEEN_ERROR:.1%}"
        )
    stages = [_stage("temperature", wish.temperature != 1.0, p, kept, entropy)]
    for name, cut, value, off in (
        ("top_k", _top_k, wish.top_k, 0),
        ("top_p", _top_p, wish.top_p, 1.0),
        ("min_p", _min_p, wish.min_p, 0.0),
    ):
        before = kept
        is_active = value != off and value >= 0
        if is_active:
            kept = cut(p, kept, value)
        same = replace(kept, why=()) == replace(before, why=())
        stages.append(_stage(name, is_active, p, kept, stages[-1].entropy if same else None))
    return tuple(stages)


# ---- the stages -----------------------------------------------------------------------------


def _top_k(p: Sequence[float], kept: _Kept, top_k: float) -> _Kept:
    k = int(top_k)
    if k <= kept.named:  # the first stage: nothing is uncertain yet
        return kept.only(k)
    if k >= kept.num_high:
        return kept
    named, rest = kept.named, kept.num_low - kept.named
    more = k - named
    return kept.because(
        f"top-k {k} keeps more than the {named} candidates that the trace names",
        tail_low=kept.tail_low * min(more / max(rest, 1), 1.0),  # the heaviest of the rest
        tail_high=min(kept.tail_high, more * p[named - 1]),
        num_low=k,
        num_high=k,
    )


def _top_p(p: Sequence[float], kept: _Kept, share: float) -> _Kept:
    mass, low, high = 0.0, 0, 0
    sum_named = math.fsum(p[: kept.named])
    borders = (share * (sum_named + kept.tail_low), share * (sum_named + kept.tail_high))
    for index in range(kept.named):
        mass += p[index]
        low = low or (index + 1 if mass >= borders[0] - _SLACK else 0)
        high = high or (index + 1 if mass >= borders[1] - _SLACK else 0)
    if low and low == high:
        return kept.only(low)
    if low and high:
        return kept.only(high).because(
            f"top-p {share:g} cuts a mass that is not known exactly", num_low=low
        )
    last = p[kept.named - 1]
    return kept.because(
        f"top-p {share:g} keeps more than the {kept.named} candidates that the trace names",
        tail_low=max(borders[0] - sum_named, 0.0),
        tail_high=min(kept.tail_high, max(borders[1] - sum_named, 0.0) + last),
        num_low=low or _at_least(kept, borders[0] - sum_named, last),
    )


def _at_least(kept: _Kept, missing: float, most: float) -> int:
    """How many candidates it takes for a mass when each has at most so much."""
    number = math.ceil(missing / most) if most > missing * 1e-9 else kept.num_high
    return min(kept.named + max(number, 0), kept.num_high)


def _min_p(p: Sequence[float], kept: _Kept, share: float) -> _Kept:
    named = max(sum(one >= share * p[0] for one in p[: kept.named]), 1)
    if named < kept.named or kept.tail_high == 0.0:
        return replace(kept.only(named), num_low=min(kept.num_low, named))
    return kept.because(
        f"min-p {share:g} may keep candidates beyond the {kept.named} that the trace names",
        tail_low=0.0,
        num_low=min(kept.num_low, kept.named),
        num_high=min(kept.num_high, kept.named + int(kept.tail_high / (share * p[0]))),
    )


def _stage(
    name: str, active: bool, p: Sequence[float], kept: _Kept, entropy: float | None
) -> Stage:
    sum_named = math.fsum(p[: kept.named])
    tail = (kept.tail_low + kept.tail_high) / 2
    total = sum_named + tail
    left = tuple(one / total for one in p[: kept.named])
    if entropy is None:
        entropy = -math.fsum(one * math.log(one) for one in left if one > 0)
        number = max((kept.num_low + kept.num_high) // 2 - kept.named, 1)
        if tail > 0:  # as if all of the rest were equally probable
            entropy -= tail / total * math.log(tail / total / number)
    return Stage(
        name,
        active,
        left + (0.0,) * (len(p) - kept.named),
        (kept.num_low, kept.num_high),
        (
            kept.tail_low / (sum_named + kept.tail_low),
            kept.tail_high / (sum_named + kept.tail_high),
        ),
        max(entropy, 0.0) + 0.0,
        kept.why,
    )
