"""The arithmetic of docs/numerics.md, "Attention", one exact operation at a time.

Slow on purpose: every fused multiply-add is a rational number rounded once to float32. Written from
the document alone, so that the kernels are held to it bit for bit.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from paged import round_bf16

from headrace.ops.kv import KVFormat

F32 = npt.NDArray[np.float32]
TILE, SEGMENT, LANES = 128, 512, 16


def round_f32(x: Fraction) -> float:
    """The nearest float32, half to even; results below the normal range are flushed to zero."""
    if x == 0:
        return 0.0
    exponent = max(abs(x).numerator.bit_length() - abs(x).denominator.bit_length() - 1, -200)
    if abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    ulp = Fraction(2) ** (exponent - 23)
    y = float(round(x / ulp) * ulp)
    return y if abs(y) >= 2.0**-126 else 0.0


def fma(a: float, b: float, c: float) -> float:
    return round_f32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def mul(a: float, b: float) -> float:
    return round_f32(Fraction(float(a)) * Fraction(float(b)))


def add(a: float, b: float) -> float:
    return round_f32(Fraction(float(a)) + Fraction(float(b)))


def exp(x: float) -> float:
    """elementary.h, for x ≤ 0."""
    f = np.float32
    n = round(mul(x, f(1.44269504)))
    r = fma(n, -float.fromhex("0x1.62ep-1"), x)
    r = fma(n, -float.fromhex("0x1.0bfbe8p-15"), r)
    q = f(0.00139504881)
    for c in (0.00836888794, 0.041666206, 0.166665182, 0.5):
        q = f(fma(q, r, f(c)))
    return mul(add(fma(mul(r, r), q, r), 1.0), 2.0 ** max(n, -140))


def tree(lanes: list[float]) -> float:
    step = LANES // 2
    while step:
        lanes = [add(lanes[i], lanes[i + step]) for i in range(step)]
        step //= 2
    return lanes[0]


Partial = tuple[float, float, list[float]]


def tile_partial(q: F32, k: F32, v: F32, start: int, low: int, high: int, rounded: bool) -> Partial:
    """Positions low … high of the tile at `start`; q is scaled (and rounded) already."""
    scores = {}
    for t in range(low, high + 1):
        s = 0.0
        for d in range(0, len(q), 2):
            s = fma(q[d], k[t, d], fma(q[d + 1], k[t, d + 1], s))
        scores[t] = s
    m = max(scores.values())
    p = {t: exp(add(s, -m)) for t, s in scores.items()}
    lanes = [0.0] * LANES
    for t in sorted(p):
        lanes[t % LANES] = add(lanes[t % LANES], p[t])
    if rounded:
        p = {t: float(round_bf16([x])[0]) for t, x in p.items()}
    out = []
    for d in range(v.shape[1]):
        o = 0.0
        for t in range(start, start + TILE, 2):
            if low <= t <= high or low <= t + 1 <= high:
                even, odd = (float(v[u, d]) if u in p else 0.0 for u in (t, t + 1))
                o = fma(p.get(t, 0.0), even, fma(p.get(t + 1, 0.0), odd, o))
        out.append(o)
    return m, tree(lanes), out


def fold(left: Partial | None, right: Partial) -> Partial:
    if left is None:
        return right
    m = max(left[0], right[0])
    a, b = exp(add(left[0], -m)), exp(add(right[0], -m))
    total = fma(right[1], b, mul(left[1], a))
    return m, total, [fma(y, b, mul(x, a)) for x, y in zip(left[2], right[2], strict=True)]


def attend_row(
    q: F32, k: F32, v: F32, position: int, scale: float, window: int, fmt: KVFormat
) -> F32:
    """One query row and head: q [Dk], k [S, Dk], v [S, Dv] (rounded to the KV format) → [Dv]."""
    rounded = fmt is KVFormat.BF16
    scaled = (q * np.float32(scale)).astype(np.float32)
    scaled = round_bf16(scaled) if rounded else scaled
    lowest = max(0, position - window + 1) if window else 0
    total: Partial | None = None
    segment: Partial | None = None
    for start in range(lowest // TILE * TILE, position + 1, TILE):
        low, high = max(lowest, start), min(position, start + TILE - 1)
        segment = fold(segment, tile_partial(scaled, k, v, start, low, high, rounded))
        if (start + TILE) % SEGMENT == 0 or high == position:
            total, segment = fold(total, segment), None
    assert total is not None
    inverse = round_f32(1 / Fraction(total[1]))
    return np.array([mul(x, inverse) for x in total[2]], np.float32)
