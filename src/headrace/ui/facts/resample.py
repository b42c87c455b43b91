"""Resample: what other sampling parameters would have made of a distribution that was traced. Pure.

A trace names the N most probable candidates with their logits, and knows the normaliser of *all*
candidates on a grid of temperatures. Every stage but typical keeps a prefix of the candidates in
order of probability, and typical those near the entropy, so much is exact without the others; what
is not comes with its limits and a reason.

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
    typical_p: float = 1.0


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


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is left so far. named: ranks of named candidates, ascending. Masses are those of the
    whole distribution at the temperature. is_loose: which of the named are left is an estimate."""

    named: tuple[int, ...]
    tail_low: float
    tail_high: float
    num_low: int
    num_high: int
    is_loose: bool = False
    why: tuple[str, ...] = ()

    def because(self, reason: str, **changes: Any) -> _Kept:
        return replace(self, why=(*self.why, reason), **changes)

    def only(self, named: Sequence[int]) -> _Kept:
        """These named candidates and nothing else; where it is an estimate, as many as before."""
        if self.is_loose:
            return replace(self, named=tuple(named), tail_low=0.0, num_low=1)
        return replace(
            self,
            named=tuple(named),
            tail_low=0.0,
            tail_high=0.0,
            num_low=len(named),
            num_high=len(named),
        )

    def mass(self, p: Sequence[float]) -> float:
        """Of the named."""
        return math.fsum(p[rank] for rank in self.named)


def resample(known: Known, wish: Wish) -> tuple[Stage, ...]:
    """The stages temperature, top_k, typical, top_p, min_p, each with what it leaves."""
    if wish.temperature == 0 or wish.top_p == 0:
        greedy = (1.0,) + (0.0,) * (len(known.ids) - 1)
        first = Stage("temperature", True, greedy, (1, 1), (0.0, 0.0), 0.0, ())
        others = ("top_k", "typical", "top_p", "min_p")
        return (first, *(replace(first, name=name, active=False) for name in others))
    log_z, entropy, is_exact = known.log_normaliser(wish.temperature)
    p = [math.exp(z / wish.temperature - log_z) for z in known.logits]
    tail = 0.0 if known.names_all else max(1.0 - math.fsum(p), 0.0)
    kept = _Kept(tuple(range(len(p))), tail, tail, known.num_candidates, known.num_candidates)
    if not is_exact:
        kept = kept.because(
            f"temperature {wish.temperature:g} lies between two that the trace knows: its "
            f"normaliser is interpolated, within {BETWEEN_ERROR:.1%}"
        )
    stages = [_stage("temperature", wish.temperature != 1.0, p, kept, entropy)]
    for name, value, off in (
        ("top_k", wish.top_k, 0),
        ("typical", wish.typical_p, 1.0),
        ("top_p", wish.top_p, 1.0),
        ("min_p", wish.min_p, 0.0),
    ):
        before, entropy = kept, stages[-1].entropy
        is_active = value != off and value >= 0
        if is_active and name == "typical":
            kept = _typical(p, kept, value, entropy)
        elif is_active:
            kept = _CUTS[name](p, kept, value)
        same = replace(kept, why=()) == replace(before, why=())
        stages.append(_stage(name, is_active, p, kept, entropy if same else None))
    return tuple(stages)


# ---- the stages -----------------------------------------------------------------------------


def _top_k(p: Sequence[float], kept: _Kept, top_k: float) -> _Kept:
    k, num_named = int(top_k), len(kept.named)
    if k <= num_named:  # the first stage: nothing is uncertain yet
        return kept.only(kept.named[:k])
    if k >= kept.num_high:
        return kept
    rest, more = kept.num_low - num_named, k - num_named
    return kept.because(
        f"top-k {k} keeps more than the {num_named} candidates that the trace names",
        tail_low=kept.tail_low * min(more / max(rest, 1), 1.0),  # the heaviest of the rest
        tail_high=min(kept.tail_high, more * p[kept.named[-1]]),
        num_low=k,
        num_high=k,
    )


def _typical(p: Sequence[float], kept: _Kept, share: float, entropy: float) -> _Kept:
    """Whoever is not named has at least the surprise of the last named one: named candidates that
    are nearer to the entropy than that come first, whatever the others are."""
    total = kept.mass(p) + (kept.tail_low + kept.tail_high) / 2
    surprise = {r: math.log(total / p[r]) if p[r] > 0 else math.inf for r in kept.named}
    border = surprise[kept.named[-1]] - entropy if kept.tail_high > 0 else math.inf
    order = sorted(kept.named, key=lambda rank: (abs(surprise[rank] - entropy), rank))
    near = [rank for rank in order if abs(surprise[rank] - entropy) <= border]
    taken = _until(p, near, share * total)
    if taken is not None and kept.tail_low == kept.tail_high:
        return kept.only(sorted(taken))
    # as if all of the rest lay at the border: after the near ones, before the others
    missing = share * total - math.fsum(p[rank] for rank in near) - kept.tail_high
    far = _until(p, order[len(near) :], missing) or order[len(near) :]
    return kept.because(
        f"typical-p {share:g} depends on candidates beyond the {len(kept.named)} that the trace "
        "names",
        named=tuple(sorted(taken or (*near, *(far if missing > 0 else ())))),
        tail_low=0.0,
        num_low=max(len(taken or near), 1) if kept.tail_low == kept.tail_high else 1,
        is_loose=True,
    )


def _until(p: Sequence[float], ranks: Sequence[int], mass: float) -> list[int] | None:
    """The first of the ranks that together reach a mass; None where all of them do not."""
    total = 0.0
    for place, rank in enumerate(ranks, 1):
        total += p[rank]
        if total >= mass - _SLACK:
            return list(ranks[:place])
    return None


def _top_p(p: Sequence[float], kept: _Kept, share: float) -> _Kept:
    sum_named = kept.mass(p)
    borders = (share * (sum_named + kept.tail_low), share * (sum_named + kept.tail_high))
    low, high = (_until(p, kept.named, border) for border in borders)
    if high is not None and (kept.is_loose or low == high):
        return kept.only(high)
    if low is not None and high is not None:
        return kept.only(high).because(
            f"top-p {share:g} cuts a mass that is not known exactly", num_low=len(low)
        )
    if kept.is_loose:
        return kept.only(kept.named)
    last = p[kept.named[-1]]
    return kept.because(
        f"top-p {share:g} keeps more than the {len(kept.named)} candidates that the trace names",
        tail_low=max(borders[0] - sum_named, 0.0),
        tail_high=min(kept.tail_high, max(borders[1] - sum_named, 0.0) + last),
        num_low=len(low) if low else _at_least(kept, borders[0] - sum_named, last),
    )


def _at_least(kept: _Kept, missing: float, most: float) -> int:
    """How many candidates it takes for a mass when each has at most so much."""
    number = math.ceil(missing / most) if most > missing * 1e-9 else kept.num_high
    return min(len(kept.named) + max(number, 0), kept.num_high)


def _min_p(p: Sequence[float], kept: _Kept, share: float) -> _Kept:
    if not kept.named:  # all that is left are candidates without a name
        return kept
    border = share * p[kept.named[0]]
    named = tuple(rank for rank in kept.named if p[rank] >= border) or kept.named[:1]
    if kept.is_loose or len(named) < len(kept.named) or kept.tail_high == 0.0:
        return (
            kept.only(named)
            if kept.is_loose
            else replace(kept.only(named), num_low=min(kept.num_low, len(named)))
        )
    return kept.because(
        f"min-p {share:g} may keep candidates beyond the {len(named)} that the trace names",
        tail_low=0.0,
        num_low=min(kept.num_low, len(named)),
        num_high=min(kept.num_high, len(named) + int(kept.tail_high / border)),
    )


_CUTS = {"top_k": _top_k, "top_p": _top_p, "min_p": _min_p}


def _stage(
    name: str, active: bool, p: Sequence[float], kept: _Kept, entropy: float | None
) -> Stage:
    sum_named = kept.mass(p)
    tail = (kept.tail_low + kept.tail_high) / 2
    total = sum_named + tail
    left = [0.0] * len(p)
    for rank in kept.named:
        left[rank] = p[rank] / total
    if entropy is None:
        entropy = -math.fsum(one * math.log(one) for one in left if one > 0)
        number = max((kept.num_low + kept.num_high) // 2 - len(kept.named), 1)
        if tail > 0:  # as if all of the rest were equally probable
            entropy -= tail / total * math.log(tail / total / number)
    high = kept.tail_high / (sum_named + kept.tail_high) if kept.tail_high else 0.0
    return Stage(
        name,
        active,
        tuple(left),
        (kept.num_low, kept.num_high),
        (
            kept.tail_low / (sum_named + kept.tail_low) if kept.tail_low else 0.0,
            1.0 if kept.is_loose and kept.tail_high else high,
        ),
        max(entropy, 0.0) + 0.0,
        kept.why,
    )
