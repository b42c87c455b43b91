"""docs/sampling.md in plain Python, slow and obvious: the oracle of the native sampler.

Nothing here is shared with the product. Python floats are IEEE float64 without contraction, so
results are compared bit by bit.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
NEVER = -math.inf


def exp(x: float) -> float:
    if x < -708.0:
        return 0.0
    magic = 1.5 * 2.0**52
    k = (x * 1.4426950408889634 + magic) - magic
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = 1.0 / math.factorial(13)
    for i in range(12, -1, -1):
        p = p * r + 1.0 / math.factorial(i)
    return p * 2.0**k


def ln(x: float) -> float:
    m, e = math.frexp(x)  # m in [½, 1)
    m, e = m * 2.0, e - 1
    if m > 1.4142135623730951:
        m, e = m * 0.5, e + 1
    s = (m - 1.0) / (m + 1.0)
    q = s * s
    p = 1.0 / 21.0
    for odd in range(19, 1, -2):
        p = p * q + 1.0 / odd
    return e * LN2_HIGH + ((s + s) + ((s + s) * (q * p) + e * LN2_LOW))


def philox(counter: list[int], key: int) -> list[int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & 0xFFFFFFFF,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def gumbel(seed: int, position: int, sample_index: int, token: int, stream: int = 0) -> float:
    word = philox([token >> 2, position, sample_index, stream], seed)[token & 3]
    return -ln(-ln((word + 0.5) / 2.0**32))


def uniform(seed: int, position: int, sample_index: int, stream: int) -> float:
    first, second = philox([0, position, sample_index, stream], seed)[:2]
    return ((first << 20 | second >> 12) + 0.5) / 2.0**52


@dataclass
class Distribution:
    """z: id → logit of the candidates. ranked: whether a stage has sorted them."""

    z: dict[int, float]
    num_ids: int
    ranked: bool = False
    weights: dict[int, float] = field(default_factory=dict)

    def order(self) -> list[int]:
        return sorted(self.z, key=lambda i: (-self.z[i], i))

    def total(self, terms: dict[int, float]) -> float:
        if self.ranked:
            result = 0.0
            for i in self.order():
                result = result + terms[i]
            return result
        lanes = [0.0] * 16
        for i in range(self.num_ids):
            lanes[i % 16] = lanes[i % 16] + terms.get(i, 0.0)
        for step in (8, 4, 2, 1):
            for lane in range(step):
                lanes[lane] = lanes[lane] + lanes[lane + step]
        return lanes[0]

    def weigh(self) -> tuple[float, float, float]:
        """Fills weights; returns (z_max, Z, entropy)."""
        top = max(self.z.values())
        self.weights = {i: exp(z - top) for i, z in self.z.items()}
        total = self.total(self.weights)
        depth = self.total(
            {i: 0.0 if w == 0.0 else w * (self.z[i] - top) for i, w in self.weights.items()}
        )
        return top, total, max(0.0, ln(total) - depth / total)

    def keep(self, ids: list[int], ranked: bool) -> None:
        self.z = {i: self.z[i] for i in ids}
        self.ranked = self.ranked or ranked


def shortest(order: list[int], weights: dict[int, float], target: float) -> list[int]:
    reached, kept = 0.0, []
    for i in order:
        kept.append(i)
        reached = reached + weights[i]
        if reached >= target:
            break
    return kept


def apply_stage(name: str, d: Distribution, p, prompt, output, stop_ids, mask) -> None:
    greedy = p.temperature == 0 or p.top_p == 0
    if name == "bias":
        if mask is not None:
            d.keep([i for i in d.z if i in mask], False)
        if p.allowed_token_ids is not None:
            d.keep([i for i in d.z if i in set(p.allowed_token_ids)], False)
        held = set(stop_ids) if len(output) < p.min_tokens else set()
        d.keep([i for i in d.z if i not in p.banned_token_ids and i not in held], False)
        for i, bias in (p.logit_bias or {}).items():
            if i in d.z:
                d.z[i] = d.z[i] + bias
    elif name == "penalties":
        for i in list(d.z):
            count = output.count(i)
            if (i in prompt or count) and p.repetition_penalty != 1:
                r = p.repetition_penalty
                d.z[i] = d.z[i] / r if d.z[i] > 0 else d.z[i] * r
            if count:
                d.z[i] = (d.z[i] - p.frequency_penalty * count) - p.presence_penalty
    elif greedy:
        if name == ("temperature" if p.temperature == 0 else "top_p"):
            d.keep(d.order()[:1], True)
    elif name == "temperature":
        if p.temperature != 1:
            d.z = {i: z / p.temperature for i, z in d.z.items()}
    elif name == "top_k":
        if 0 < p.top_k < d.num_ids:
            d.keep(d.order()[: p.top_k], True)
    elif name == "typical":
        if p.typical_p < 1:
            top, total, entropy = d.weigh()
            by = {i: abs((ln(total) - (z - top)) - entropy) for i, z in d.z.items()}
            order = sorted(d.z, key=lambda i: (by[i], -d.z[i], i))
            d.keep(shortest(order, d.weights, p.typical_p * total), True)
    elif name == "top_p":
        if p.top_p < 1:
            _, total, _ = d.weigh()
            d.keep(shortest(d.order(), d.weights, p.top_p * total), True)
    elif name == "min_p" and p.min_p > 0:
        d.weigh()
        d.keep([i for i in d.z if d.weights[i] >= p.min_p], False)


@dataclass
class Draw:
    status: str
    token: int = -1
    model: Distribution | None = None
    final: Distribution | None = None
    after: list[Distribution] = field(default_factory=list)


def draw(
    row, num_ids, p, prompt, output, stop_ids, seed, sample_index, position, mask=None, stream=0
) -> Draw:
    """A draw of a stream: 0 = text, 1 = drafts."""
    values = [float(x) for x in row[:num_ids]]
    if any(math.isnan(v) or v == math.inf for v in values) or all(v == NEVER for v in values):
        return Draw("NON_FINITE")
    z = {i: v for i, v in enumerate(values) if v != NEVER}
    d = Distribution(dict(z), num_ids)
    after = []
    for name in p.stages:
        apply_stage(name, d, p, prompt, output, stop_ids, mask)
        if not d.z:
            return Draw("NO_CANDIDATES")
        after.append(Distribution(dict(d.z), num_ids, d.ranked))
    best = max(d.z, key=lambda i: (d.z[i] + gumbel(seed, position, sample_index, i, stream), -i))
    return Draw("OK", best, Distribution(z, num_ids), d, after)


def logprobs(d: Distribution, token: int, top_n: int):
    """(logprob, rank, [(id, logprob)])"""
    top, total, _ = d.weigh()
    order = d.order()
    value = {i: (d.z[i] - top) - ln(total) for i in order}
    return value[token], order.index(token) + 1, [(i, value[i]) for i in order[:top_n]]


def probabilities(d: Distribution) -> dict[int, float]:
    """id → probability, where it is above 0; ids ascending."""
    _, total, _ = d.weigh()
    every = {i: d.weights[i] / total for i in sorted(d.z)}
    return {i: p for i, p in every.items() if p > 0.0}


def kept_with(q: float, p: float) -> float:
    """Probability that a draft is kept."""
    if q <= 0.0:
        return 0.0
    return 1.0 if q >= p else q / p


def residual(q: dict[int, float], p: dict[int, float]) -> dict[int, float]:
    """max(q − p, 0), not normalised; q itself where nothing is left."""
    rest = {i: x - p.get(i, 0.0) if x > p.get(i, 0.0) else 0.0 for i, x in q.items()}
    return rest if sum(rest.values()) > 0.0 else q


def pick(weights: dict[int, float], u: float) -> int:
    """The first id at which the sum by id exceeds u times the whole."""
    total = 0.0
    for w in weights.values():
        total = total + w
    reached, last = 0.0, -1
    for i, w in weights.items():
        if w > 0.0:
            reached, last = reached + w, i
            if reached > u * total:
                break
    return last


def reject(
    q: dict[int, float], p: dict[int, float], draft: int, seed: int, position: int, index: int
) -> int:
    """The rejection rule: q, p by ascending id; p = {draft: 1.0} for a draft without chance."""
    if uniform(seed, position, index, 2) < kept_with(q.get(draft, 0.0), p[draft]):
        return draft
    return pick(residual(q, p), uniform(seed, position, index, 3))


def bits(x: float) -> bytes:
    return struct.pack("<d", x)
