"""How wrong a float32 op may be on given operands: first-order rounding bounds, per element.

u = 2⁻²⁴ is the relative error of one float32 operation. A sum of n terms added in any order is off
by at most n·u·Σ|terms|; every bound here is that, counted for the order of docs/numerics.md, plus
the roundings around it. Bounds hold for the worst case, so honest results lie far below 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.ops.contract import RopeLayout
from headrace.ops.kv import KVFormat
from headrace.ops.recording import (
    Add,
    Attend,
    Embed,
    Gated,
    LayerNorm,
    Op,
    RmsNorm,
    Rope,
    Unary,
    UnaryKind,
)
from headrace.ops.reference import functions as f
from headrace.ops.reference.weights import WeightStore

U = 2.0**-24
#: Relative error of one rounding to bf16.
_BF16 = 2.0**-8
#: Flush-to-zero may take this from anything.
TINY = 1e-30
_BLOCK, _TILE, _LANES = 32, 128, 16
#: Formats whose weights are code · scale plus a minimum: terms may be larger than their sum.
_WITH_MINIMUM = frozenset({"Q4_1", "Q5_1", "Q4_K", "Q5_K"})
_FLOATS = frozenset({"F32", "F16", "BF16"})


def linear_with_bound(
    x: Tensor, name: str, number_format: str, bias: Tensor | None, weights: WeightStore
) -> tuple[Tensor, Tensor]:
    """x Wᵀ (+ b) on rounded operands x [n, K], and its bound, both [n, N].

    Float weights: partial sums over 32, then over blocks. Quantised ones: exact inside a block, one
    or two roundings per block, and a few for scales. A minimum m and the codes above it are each at
    most 2·max|w| in a block that uses its whole range, as quantisers make them.
    """
    blocks = -(-x.shape[1] // _BLOCK)
    steps = _BLOCK + blocks + 2 if number_format in _FLOATS else 2 * blocks + 8
    answers, magnitudes = [], []
    for matrix in weights.slices(name):
        answers.append(x @ matrix.T)
        if number_format in _WITH_MINIMUM:
            largest = matrix.abs().reshape(matrix.shape[0], -1, _BLOCK).amax(dim=-1)
            sums = x.abs().reshape(x.shape[0], -1, _BLOCK).sum(dim=-1)
            magnitudes.append(3 * (sums @ largest.T))
        else:
            magnitudes.append(x.abs() @ matrix.abs().T)
    y, magnitude = torch.cat(answers, dim=1), torch.cat(magnitudes, dim=1)
    if bias is not None:
        y = y + bias
    return y, steps * U * magnitude + U * y.abs() + TINY


def attend_bound(
    op: Attend, q: Tensor, k: Tensor, v: Tensor, at: Tensor, held: Tensor, kv_format: KVFormat
) -> Tensor:
    """Of attention of prepared queries q (scale applied) [n, H·D] on k, v [S, ·] → [n, H·Dv].

    Scores are off by δ; a probability by 2δ and its own roundings (2⁻⁸ with bf16 KV); the weighted
    sum of |v| turns that into the result's error.
    """
    shape = {"heads": op.heads, "kv_heads": op.kv_heads}
    spread = f.attend(
        q, k, v.abs(), at, held, **shape, scale=1.0, window=op.window, soft_cap=op.soft_cap
    )
    groups = op.heads // op.kv_heads
    queries = q.abs().reshape(q.shape[0], op.kv_heads, groups, -1)
    keys = k.abs().reshape(k.shape[0], op.kv_heads, -1)
    dim = keys.shape[-1]
    largest = torch.einsum("nkgd,skd->nkgs", queries, keys).amax(dim=-1)  # [n, K, H / K]
    delta = (dim + 8) * U * largest.reshape(q.shape[0], op.heads, 1)
    folds = held.shape[0] // _TILE + 2
    per_head = 2 * delta + (_TILE + 40 + 8 * folds) * U
    if kv_format is KVFormat.BF16:
        per_head = per_head + _BF16
    by_head = spread.reshape(q.shape[0], op.heads, -1)
    return (by_head * per_head).reshape(spread.shape) + TINY


def bound_of(op: Op, inputs: Sequence[Tensor], answer: Tensor, weights: WeightStore) -> Tensor:
    """Of the ops without a long sum of their own kind; inputs and answer in float64."""
    size = answer.abs()
    match op:
        case Embed(weight=weight):
            # A table row is code · scale (+ minimum): two roundings of terms up to twice the value.
            return 4 * U * size.amax(dim=1, keepdim=True) + TINY
        case RmsNorm(x=x, groups=groups):
            return ((x.columns // groups / _LANES + 6) / 2 + 4) * U * size + TINY
        case LayerNorm(x=x, weight=weight, bias=bias, eps=eps):
            return _layer_norm_bound(inputs[0], weights.vector(weight), eps) + (
                4 * U * (size + weights.vector(bias).abs())
            )
        case Rope():
            return 4 * U * _pair_size(op, inputs[0]) + TINY
        case Gated():
            return 12 * U * (inputs[0] * inputs[1]).abs() + TINY
        case Add():
            return U * size + TINY
        case Unary(kind=UnaryKind.GELU):
            return 12 * U * inputs[0].abs() + TINY
        case Unary(kind=UnaryKind.SCALE):
            return U * size + TINY
        case Unary(kind=UnaryKind.SOFT_CAP, value=cap):
            return 8 * U * torch.minimum(inputs[0].abs(), torch.tensor(cap)) + TINY
        case _:  # copies and selections are exact
            return torch.zeros_like(size)


def _layer_norm_bound(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The mean is off by n/16 roundings of mean|x|, the deviation by as much relatively."""
    steps = x.shape[1] / _LANES + 8
    centred = x - x.mean(dim=1, keepdim=True)
    deviation = ((centred * centred).mean(dim=1, keepdim=True) + eps).sqrt()
    mean_error = steps * U * x.abs().mean(dim=1, keepdim=True)
    relative = (steps * U + 2 * mean_error / deviation) * centred.abs()
    return (mean_error + relative) / deviation * weight.abs() * 2 + TINY


def _pair_size(op: Rope, x: Tensor) -> Tensor:
    """|x₀| + |x₁| of the pair each element turns in; |x| where nothing turns."""
    heads = x.abs().reshape(x.shape[0], op.heads, -1)
    turning, rest = heads[..., : op.spec.rotary_dim], heads[..., op.spec.rotary_dim :]
    if op.spec.layout is RopeLayout.HALF:
        a, b = turning.chunk(2, dim=-1)
        both = torch.cat([a + b, a + b], dim=-1)
    else:
        pairs = turning[..., 0::2] + turning[..., 1::2]
        both = torch.stack([pairs, pairs], dim=-1).flatten(-2)
    return torch.cat([both, 0 * rest], dim=-1).reshape(x.shape)
