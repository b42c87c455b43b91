"""Sampling by its definitions, in numpy and float64: what the native sampler is compared with.

    logits ─ temperature ─ top-k ─ typical ─ top-p ─ min-p ─▶ (ids, probabilities) after each stage

Follows docs/sampling.md with numpy's own exp and log, so the last bits may differ, nothing else.
Also measures of text: how much of it repeats.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.engine.params import ORDERED_STAGES, SamplingParams

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """ids: in candidate order (logit descending, then id). z: their logits."""

    ids: Ids
    z: Floats

    @property
    def probabilities(self) -> Floats:
        weights = np.exp(self.z - self.z[0])
        result: Floats = weights / weights.sum()
        return result

    @property
    def entropy(self) -> float:
        """Nats."""
        p = self.probabilities
        p = p[p > 0]
        return max(0.0, float(-(p * np.log(p)).sum()))

    def kept(self, which: npt.NDArray[np.bool_]) -> Candidates:
        return Candidates(self.ids[which], self.z[which])


def candidates(logits: npt.NDArray[np.float32], num_ids: int) -> Candidates:
    """All ids below num_ids, ranked."""
    z = logits[:num_ids].astype(np.float64)
    order = np.lexsort((np.arange(num_ids), -z))
    return Candidates(order, z[order])


def stages(start: Candidates, params: SamplingParams) -> dict[str, Candidates]:
    """What is left after each of the ordered stages, in the request's order. Bias and penalties
    must be off."""
    current, result = start, {}
    for name in params.stages:
        if name in ORDERED_STAGES:
            current = _greedy(current, params, name) or _stage(current, params, name)
            result[name] = current
    return result


def _greedy(current: Candidates, params: SamplingParams, name: str) -> Candidates | None:
    """Temperature 0 and top-p 0 keep the first, and every other stage is off; else None."""
    if not params.greedy:
        return None
    at = "temperature" if params.temperature == 0 else "top_p"
    return Candidates(current.ids[:1], current.z[:1]) if name == at else current


def _stage(current: Candidates, params: SamplingParams, name: str) -> Candidates:
    match name:
        case "temperature":
            return Candidates(current.ids, current.z / params.temperature)
        case "top_k":
            k = params.top_k if params.top_k > 0 else len(current.ids)
            return Candidates(current.ids[:k], current.z[:k])
        case "top_p":
            if params.top_p >= 1:
                return current
            return current.kept(_shortest(current.probabilities, params.top_p))
        case "min_p":
            return current.kept(np.exp(current.z - current.z[0]) >= params.min_p)
        case "typical":
            return current if params.typical_p >= 1 else _typical(current, params.typical_p)
    raise AssertionError(name)


def _shortest(p: Floats, mass: float) -> npt.NDArray[np.bool_]:
    """The shortest prefix whose sum reaches `mass`."""
    reached = np.cumsum(p)
    end = int(np.searchsorted(reached, mass * reached[-1])) + 1
    kept: npt.NDArray[np.bool_] = np.arange(len(p)) < end
    return kept


def _typical(current: Candidates, mass: float) -> Candidates:
    p = current.probabilities
    with np.errstate(divide="ignore"):
        distance = np.abs(-np.log(p) - current.entropy)
    order = np.lexsort((np.arange(len(p)), distance))
    which = np.zeros(len(p), bool)
    which[order[_shortest(p[order], mass)]] = True
    return current.kept(which)


def entropy_at(z: Floats, temperature: float) -> float:
    """Entropy of softmax(z / T), nats."""
    return Candidates(np.empty(0, np.int64), np.sort(z / temperature)[::-1]).entropy


def entropy_slope(z: Floats, temperature: float) -> float:
    """dH/dT = Var(z) / T³, the variance under softmax(z / T): never below 0, so entropy only
    grows with temperature."""
    w = np.exp((z - z.max()) / temperature)
    p = w / w.sum()
    mean = float((p * z).sum())
    return float((p * (z - mean) ** 2).sum()) / temperature**3


def cross_entropy(z: Floats, temperature: float) -> float:
    """Nats per token that softmax(z) gives to tokens drawn from softmax(z / T)."""
    w = np.exp((z - z.max()) / temperature)
    p = w / w.sum()
    log_q = z - z.max() - math.log(np.exp(z - z.max()).sum())
    return float(-(p * log_q).sum())


# ---- measures of text ----------------------------------------------------------------------------


def distinct(tokens: Sequence[Hashable], n: int) -> float:
    """Different n-grams ÷ n-grams (Li et al., 2016); 1 for a text shorter than n."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repeated(tokens: Sequence[Hashable], n: int = 4) -> float:
    """Share of n-grams that occurred before in the text."""
    return 1.0 - distinct(tokens, n)
