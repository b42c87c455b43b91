"""TrainingOps: the reference interpreter, faster for batches of equally long sequences.

The mathematics is that of ReferenceOps; three ops are answered by torch's fused kernels instead of
one by one: attention over all sequences at once (scaled_dot_product_attention), rotations from
tables that are made once, and the embedding, whose gradient is then summed in a fixed order.
tests/lab/test_training_ops.py holds values and gradients against the reference in float64. What
these kernels do not cover (soft-capped scores, unequal lengths) is left to the reference.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from headrace.ops.contract import RopeLayout, RopeSpec
from headrace.ops.reference.ops import CallStore, ReferenceOps, StepRows, Taps
from headrace.ops.reference.weights import WeightStore


class Tables:
    """Cosines and sines [T, D/2] of positions 0 … T − 1 by rotary spec, and window masks. Kept
    between the steps of a training; mutates only itself."""

    def __init__(self) -> None:
        self._turns: dict[tuple[RopeSpec, int, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int], Tensor] = {}

    def turns(self, spec: RopeSpec, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos, sin: angles in float64, then in `dtype`, as the reference makes them."""
        key = (spec, length, dtype)
        if key not in self._turns:
            frequencies = torch.tensor(spec.frequencies, dtype=torch.float64)
            angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
            self._turns[key] = angles.cos().to(dtype), angles.sin().to(dtype)
        return self._turns[key]

    def mask(self, length: int, window: int) -> Tensor:
        """Which of [T, T] a query sees, causal and inside the window."""
        key = (length, window)
        if key not in self._masks:
            behind = torch.arange(length)[:, None] - torch.arange(length)[None, :]
            self._masks[key] = (behind >= 0) & (behind < window)
        return self._masks[key]


class _WholeStore(CallStore):
    """Keys and values of this call, also for all its sequences at once."""

    def whole(self, group: int, layer: int) -> tuple[Tensor, Tensor]:
        """k [T, K·Dk], v [T, K·Dv] of the step's rows."""
        return self._bound[group, layer]


class TrainingOps(ReferenceOps):
    """Implements `Ops[Tensor]`; every sequence starts at position 0 and none is cached."""

    def __init__(
        self, weights: WeightStore, rows: StepRows, tables: Tables, taps: Taps | None = None
    ) -> None:
        store = _WholeStore(rows)
        super().__init__(weights, rows, store, taps)
        lengths = {end - begin for begin, end in pairwise(rows.spans)}
        self._length = lengths.pop() if len(lengths) == 1 else None
        self._tables = tables
        self._whole = store

    def embed(self, weight: str, index: str = "tokens") -> Tensor:
        ids = {"tokens": self._rows.tokens, "positions": self._rows.positions}[index]
        (table,) = self._weights.slices(weight)
        return self._done(functional.embedding(ids, table))

    def rope(self, x: Tensor, heads: int, spec: RopeSpec) -> Tensor:
        head_dim = x.shape[1] // heads
        plain = spec.layout is RopeLayout.HALF and spec.rotary_dim == head_dim
        if self._length is None or not plain or x.shape[1] % heads:
            return super().rope(x, heads, spec)
        cos, sin = self._tables.turns(spec, self._length, x.dtype)
        by_head = x.view(-1, self._length, heads, head_dim)
        a, b = by_head.chunk(2, dim=-1)
        cos, sin = cos[:, None], sin[:, None]
        turned = torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
        return self._done(turned.view(x.shape))

    def attend(
        self,
        q: Tensor,
        *,
        group: int,
        layer: int,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        k, v = self._whole.whole(group, layer)
        fits = q.shape[1] * kv_heads == k.shape[1] * heads
        if self._length is None or soft_cap is not None or not fits:
            return super().attend(
                q, group=group, layer=layer, heads=heads, kv_heads=kv_heads, scale=scale,
                window=window, soft_cap=soft_cap,
            )  # fmt: skip
        mask = None if window is None else self._tables.mask(self._length, window)
        mixed = functional.scaled_dot_product_attention(
            self._by_head(q, heads),
            self._by_head(k, kv_heads),
            self._by_head(v, kv_heads),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scale,
            enable_gqa=heads != kv_heads,
        )
        return self._done(mixed.transpose(1, 2).reshape(q.shape[0], -1))

    def _by_head(self, x: Tensor, heads: int) -> Tensor:
        """[B · T, heads · D] → [B, heads, T, D], a view."""
        assert self._length is not None
        return x.view(-1, self._length, heads, x.shape[1] // heads).transpose(1, 2)
