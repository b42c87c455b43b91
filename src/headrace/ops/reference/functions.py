"""The mathematics of each op on torch tensors, in whatever float type they have.

Written to be compared with the formulas in `ops/contract.py`, line by line. Letters: T query rows
of one request, S positions it holds, H query heads, K KV heads, D head dim.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.ops.contract import Activation, RopeLayout, RopeSpec
from headrace.ops.kv import KVFormat

KV_DTYPES = {
    KVFormat.F32: torch.float32,
    KVFormat.BF16: torch.bfloat16,
    KVFormat.F16: torch.float16,
}

#: Query rows whose scores are held at once; bounds [H, rows, S], changes no result.
_ROWS_AT_ONCE = 512


def rms_norm(x: Tensor, weight: Tensor, eps: float, groups: int = 1) -> Tensor:
    """x [R, C], weight [C / groups]."""
    slices = x.reshape(x.shape[0], groups, x.shape[1] // groups)
    mean_square = (slices * slices).mean(dim=-1, keepdim=True)
    return (slices / torch.sqrt(mean_square + eps) * weight).reshape(x.shape)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred * centred).mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(variance + eps) * weight + bias


def gelu(x: Tensor) -> Tensor:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    if activation is Activation.SILU:
        return gate * torch.sigmoid(gate) * up
    return gelu(gate) * up


def capped(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def scale(x: Tensor, factor: float) -> Tensor:
    """The factor is a float32 number by contract, whatever the type of x."""
    return x * torch.tensor(factor, dtype=torch.float32).to(x.dtype)


def rope(x: Tensor, positions: Tensor, heads: int, spec: RopeSpec) -> Tensor:
    """x [T, heads · D], positions int64 [T]. Angles in float64, then cos and sin in x's type."""
    frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
    angles = positions.to(torch.float64)[:, None, None] * frequencies  # [T, 1, rot/2]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    by_head = x.reshape(x.shape[0], heads, x.shape[1] // heads)
    turning, rest = by_head[..., : spec.rotary_dim], by_head[..., spec.rotary_dim :]
    if spec.layout is RopeLayout.HALF:
        a, b = turning.chunk(2, dim=-1)
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
    else:
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([turned, rest], dim=-1).reshape(x.shape)


def round_to(x: Tensor, kv_format: KVFormat | None) -> Tensor:
    """x rounded to a KV number format and back; None = not at all."""
    return x if kv_format is None else x.to(KV_DTYPES[kv_format]).to(x.dtype)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Causal attention of one request with all scores in memory: q [T, H·D], k [S, K·Dk],
    v [S, K·Dv], positions int64 [T] and [S] → [T, H·Dv]."""
    shared = heads // kv_heads  # query head h reads KV head h // shared
    keys = k.reshape(k.shape[0], kv_heads, -1)
    values = v.reshape(v.shape[0], kv_heads, -1)
    results = []
    for start in range(0, q.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        queries = q[rows].reshape(-1, kv_heads, shared, keys.shape[-1])
        scores = torch.einsum("tkgd,skd->kgts", queries, keys) * scale
        if soft_cap is not None:
            scores = capped(scores, soft_cap)
        at = q_positions[rows, None]
        visible = k_positions[None, :] <= at
        if window is not None:
            visible &= k_positions[None, :] > at - window
        weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1)
        mixed = torch.einsum("kgts,skd->tkgd", weights, values)
        results.append(mixed.reshape(mixed.shape[0], -1))
    return torch.cat(results) if results else q.new_zeros(0, heads * values.shape[-1])
