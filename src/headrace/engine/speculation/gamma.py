"""How many drafts pay: expected tokens per second of a step, from chances and costs. Pure.

With one sequence and one α this is γ = argmax (1 − α^(γ+1)) / ((1 − α)(γ·c + v(γ+1))). Sequences
that decode together share a step, so their counts are chosen together: drafts enter in the order of
the chance that they are reached and accepted, and the best prefix of that order counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

_MIN_GAIN = 1.01  # expected; less is not worth the noise of its estimate


@dataclass(slots=True)
class DraftPlan:
    """counts: drafts for each sequence. tokens, seconds: expected of the whole step, drafting
    included; plain_seconds: of the same step without drafts."""

    counts: list[int]
    tokens: float
    seconds: float
    plain_seconds: float


class StepTimes:
    """step: seconds of a step by its rows. drafting: seconds by the longest draft of the step."""

    def __init__(self, step: Callable[[int], float], drafting: Callable[[int], float]) -> None:
        self.step = step
        self.drafting = drafting


def best_plan(chances: Sequence[Sequence[float]], num_running: int, times: StepTimes) -> DraftPlan:
    """The counts with the most expected tokens per second. chances[i][k]: that draft k of sequence
    i is reached and accepted, falling in k. num_running: sequences in the step, these included."""
    plain_seconds = times.step(num_running)
    order = _order(chances)
    tokens, deepest = float(num_running), 0
    best = (0, tokens, plain_seconds)
    best_rate = tokens / plain_seconds * _MIN_GAIN
    for total, (chance, depth, _) in enumerate(order, 1):
        tokens -= chance
        deepest = max(deepest, depth)
        seconds = times.step(num_running + total) + times.drafting(deepest)
        if tokens > best_rate * seconds:
            best, best_rate = (total, tokens, seconds), tokens / seconds
    return _plan(chances, order, best, plain_seconds)


def plan_of(
    total: int, chances: Sequence[Sequence[float]], num_running: int, times: StepTimes
) -> DraftPlan:
    """The best plan of that many drafts, or of as many as have a chance."""
    order = _order(chances)[: max(total, 0)]
    seconds = times.step(num_running + len(order))
    seconds += times.drafting(max((depth for _, depth, _ in order), default=0))
    tokens = num_running - sum(chance for chance, _, _ in order)
    return _plan(chances, order, (len(order), tokens, seconds), times.step(num_running))


def _order(chances: Sequence[Sequence[float]]) -> list[tuple[float, int, int]]:
    """(−chance, depth, sequence) of all drafts, the surest first; never one before those that it
    stands behind."""
    return sorted(
        (-chance, depth, index)
        for index, row in enumerate(chances)
        for depth, chance in enumerate(row, 1)
    )


def _plan(
    chances: Sequence[Sequence[float]],
    order: Sequence[tuple[float, int, int]],
    best: tuple[int, float, float],
    plain_seconds: float,
) -> DraftPlan:
    counts = [0] * len(chances)
    for _, _, index in order[: best[0]]:
        counts[index] += 1
    return DraftPlan(counts, best[1], best[2], plain_seconds)
