"""How far logits lie from a recorded reference: flips, |Δlogit|, KL, and paired comparison.

A recording keeps, per position, the logits of a few ids (the most probable ones and a fixed set),
the argmax with its lead, and the log-normaliser over the whole vocabulary. Two implementations
are fed the same ids and compared with it, prompt by prompt, so that a bootstrap over prompts says
how sure the comparison is. Numpy only; knows no model and no engine.

P prompts, N positions per prompt, M kept ids per position, V vocabulary (all rows of the head).

KL is estimated on the partition {each kept id, everything else}:

    KL = Σ_kept p·ln(p/q) + p_rest·ln(p_rest/q_rest)

with p, q normalised over the whole vocabulary. Merging outcomes never increases KL, so this is a
lower bound of KL(reference ‖ candidate); it misses only what differs inside the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

#: Below these the rest counts as empty: of the reference, the rounding of its stored logits; of the
#: candidate, the rounding of float64 sums.
MIN_REST_P = 1e-7
MIN_REST_Q = 1e-12


@dataclass(frozen=True, slots=True)
class PromptReference:
    """What the reference says about one prompt.

    kept_ids: [N, M] ids, different within a row. kept_logits: [N, M]. log_normaliser: [N],
    ln Σ exp(logit) over V. argmax: [N]. gap: [N], lead of the argmax over the second, ≥ 0.
    """

    kept_ids: Int32
    kept_logits: Float32
    log_normaliser: Float64
    argmax: Int32
    gap: Float32


@dataclass(frozen=True, slots=True)
class Deviation:
    """A candidate against one prompt's reference.

    flipped_gaps: [flips], the reference's gap where the argmax differs. abs_delta: [N·M], |Δlogit|
    on the kept ids. kl: [N] nats.
    """

    flipped_gaps: Float64
    abs_delta: Float64
    kl: Float64


def deviation(reference: PromptReference, logits: Float32) -> Deviation:
    """Compares logits [N, V] with the reference of the same ids. Raises ValueError on NaN or ∞."""
    if not np.isfinite(logits).all():
        raise ValueError("the logits hold a NaN or an infinity")
    rows = np.arange(len(logits))
    flipped = logits.argmax(axis=1) != reference.argmax
    candidate = logits[rows[:, None], reference.kept_ids].astype(np.float64)
    kept = reference.kept_logits.astype(np.float64)
    log_p = kept - reference.log_normaliser[:, None]
    log_q = candidate - log_normaliser(logits)[:, None]
    return Deviation(
        reference.gap[flipped].astype(np.float64),
        np.abs(candidate - kept).ravel(),
        partition_kl(log_p, log_q),
    )


def log_normaliser(logits: Float32) -> Float64:
    """ln Σ exp(logit) over the last axis, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1)
    result: Float64 = top + np.log(np.exp(wide - top[..., None]).sum(axis=-1))
    return result


def partition_kl(log_p: Float64, log_q: Float64) -> Float64:
    """KL on {each kept id, the rest}; log_p, log_q: [N, M] log-probabilities → [N] nats."""
    p, q = np.exp(log_p), np.exp(log_q)
    rest_p, rest_q = 1 - p.sum(axis=1), 1 - q.sum(axis=1)
    kept = (p * (log_p - log_q)).sum(axis=1)
    some = rest_p > MIN_REST_P
    floored = np.maximum(rest_q, MIN_REST_Q)
    rest = np.where(some, rest_p * np.log(np.where(some, rest_p, 1.0) / floored), 0.0)
    result: Float64 = np.maximum(kept + rest, 0.0)
    return result


# ---- figures over prompts -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """flips: positions whose argmax differs, of num_positions. largest_flipped_gap: nats, 0
    without flips. p99_abs_delta: 99th percentile of |Δlogit| over all kept ids. mean_kl: nats."""

    num_positions: int
    flips: int
    largest_flipped_gap: float
    p99_abs_delta: float
    mean_kl: float


def figures(deviations: Sequence[Deviation]) -> Figures:
    """The figures of one candidate over all prompts."""
    gaps = np.concatenate([d.flipped_gaps for d in deviations])
    kl = np.concatenate([d.kl for d in deviations])
    return Figures(
        num_positions=len(kl),
        flips=len(gaps),
        largest_flipped_gap=float(gaps.max(initial=0.0)),
        p99_abs_delta=float(_p99(deviations)(np.ones(len(deviations), dtype=np.int64))),
        mean_kl=float(kl.mean()),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of ours and theirs. ratio: ours / theirs (1 when both are 0). low, high: 95 %
    bootstrap interval of the ratio over prompts, paired: each resample draws the same prompts for
    both."""

    ours: float
    theirs: float
    ratio: float
    low: float
    high: float


def compare(
    ours: Sequence[Deviation],
    theirs: Sequence[Deviation],
    num_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Comparison]:
    """flips, p99_abs_delta and mean_kl of two candidates on the same prompts.

    Resamples prompts with replacement (percentile interval; Efron & Tibshirani 1993, ch. 13).
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"{len(ours)} prompts of ours against {len(theirs)} of theirs")
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(ours), (num_resamples, len(ours)))
    counts = np.stack([np.bincount(row, minlength=len(ours)) for row in drawn])
    result = {}
    for name, figure in (("flips", _flips), ("p99_abs_delta", _p99), ("mean_kl", _mean_kl)):
        of_ours, of_theirs = figure(ours), figure(theirs)
        once = np.ones(len(ours), dtype=np.int64)
        a, b = of_ours(once), of_theirs(once)
        ratios = [_ratio(of_ours(c), of_theirs(c)) for c in counts]
        low, high = np.percentile(ratios, [2.5, 97.5], method="nearest")
        result[name] = Comparison(a, b, _ratio(a, b), float(low), float(high))
    return result


def _ratio(ours: float, theirs: float) -> float:
    if theirs > 0:
        return ours / theirs
    return 1.0 if ours == 0 else float("inf")


#: A figure as a function of how often each prompt counts.
Weighted = Callable[[npt.NDArray[np.int64]], float]


def _flips(deviations: Sequence[Deviation]) -> Weighted:
    per_prompt = np.array([len(d.flipped_gaps) for d in deviations])
    return lambda counts: float(counts @ per_prompt)


def _mean_kl(deviations: Sequence[Deviation]) -> Weighted:
    sums = np.array([d.kl.sum() for d in deviations])
    sizes = np.array([len(d.kl) for d in deviations])
    return lambda counts: float(counts @ sums / (counts @ sizes))


def _p99(deviations: Sequence[Deviation]) -> Weighted:
    """The smallest value that at least 99 % of the (repeated) values do not exceed. Only the
    largest values of the pool can be it, so that a resample looks at a sorted tail."""
    values = np.concatenate([d.abs_delta for d in deviations])
    owner = np.repeat(np.arange(len(deviations)), [d.abs_delta.size for d in deviations])
    order = np.argsort(values, kind="stable")[::-1]
    values, owner = values[order], owner[order]
    sizes = np.array([d.abs_delta.size for d in deviations])

    def weighted(counts: npt.NDArray[np.int64]) -> float:
        above = int(counts @ sizes) // 100  # so many may exceed it
        reach = len(values)
        for part in (16, 4, 1):
            reach = len(values) // part
            passed = np.cumsum(counts[owner[:reach]])
            if reach and passed[-1] > above:
                break
        return float(values[int(np.searchsorted(passed, above, side="right"))])

    return weighted
