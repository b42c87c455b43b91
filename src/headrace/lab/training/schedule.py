"""The learning rate of every step: a linear warm-up, then half a cosine down to a floor."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup: int, total: int, floor: float) -> float:
    """Rate of step 0 … total − 1. Steps 0 … warmup − 1 climb to `peak` in equal parts (step
    warmup − 1 has it); the last step has peak · floor. Source: arXiv:1608.03983 without restarts.
    """
    assert 0 <= step < total, "a step of the training"
    if step < warmup:
        return peak * (step + 1) / warmup
    turn = (step - warmup + 1) / max(total - warmup, 1)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * turn)))
