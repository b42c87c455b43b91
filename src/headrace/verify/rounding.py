"""The roundings of the numeric contract (docs/numerics.md) on torch tensors: what a correct native
path loses against plain mathematics, and nothing else.

`TwinOps` runs a text twice in one step, as two requests: the first plainly, the second with every
rounding that the contract prescribes. How far the two are apart is what the number formats cost,
measured rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from headrace.ops.kv import KVFormat
from headrace.ops.packed import activation_kind
from headrace.ops.program import Program
from headrace.ops.recording import ActivationKind
from headrace.ops.reference import functions as f
from headrace.ops.reference.ops import CallStore, ReferenceOps, StepRows
from headrace.ops.reference.weights import WeightStore

_BLOCK = 32


def round_activations(x: Tensor, kind: ActivationKind) -> Tensor:
    """x [rows, K] as a matmul of `kind` reads it, in x's own type. In float64: the very operands,
    bit for bit, that the native path makes of float32 input."""
    if kind is ActivationKind.F32:
        return x
    if kind is ActivationKind.BF16:
        return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)
    blocks = x.to(torch.float32).reshape(x.shape[0], -1, _BLOCK)
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    # By a tensor: torch turns number / tensor into number · (1 / tensor), with two roundings.
    limit = torch.full_like(largest, 127.0)
    codes = torch.round(blocks * (limit / largest)).clamp(-127, 127)
    # In float64 the product of a code and a float32 scale is exact.
    values = codes.to(x.dtype) * (largest / limit).to(x.dtype)
    return values.masked_fill(largest < 2.0**-120, 0.0).reshape(x.shape)


def scaled_queries(q: Tensor, scale: float, kv_format: KVFormat) -> Tensor:
    """q · scale in float32, rounded to bf16 with bf16 KV; in q's own type."""
    scaled = q.to(torch.float32) * torch.tensor(scale, dtype=torch.float32)
    if kv_format is KVFormat.BF16:
        scaled = scaled.to(torch.bfloat16)
    return scaled.to(q.dtype)


def rounded_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    kv_format: KVFormat,
) -> Tensor:
    """Dense causal attention of one whole request [T, ·] with the contract's roundings of queries
    and probabilities (as if all positions were one tile); k, v are rounded already."""
    queries = scaled_queries(q, scale, kv_format).reshape(
        -1, kv_heads, heads // kv_heads, _dim(k, kv_heads)
    )
    keys = k.reshape(k.shape[0], kv_heads, -1)
    values = v.reshape(v.shape[0], kv_heads, -1)
    scores = torch.einsum("tkgd,skd->kgts", queries, keys)
    if soft_cap is not None:
        scores = f.capped(scores, soft_cap)
    visible = positions[None, :] <= positions[:, None]
    if window is not None:
        visible &= positions[None, :] > positions[:, None] - window
    scores = scores.masked_fill(~visible, -torch.inf)
    p = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    total = p.sum(dim=-1, keepdim=True)
    if kv_format is KVFormat.BF16:
        p = p.to(torch.bfloat16).to(q.dtype)
    mixed = torch.einsum("kgts,skd->kgtd", p, values) / total
    return mixed.permute(2, 0, 1, 3).reshape(q.shape[0], -1)


def _dim(k: Tensor, kv_heads: int) -> int:
    return k.shape[1] // kv_heads


class _TwinStore(CallStore):
    """Keys and values of this call: plain in the first half of the rows, rounded in the second."""

    def write(self, group: int, layer: int, k: Tensor, v: Tensor) -> None:
        half = k.shape[0] // 2
        rounded = [torch.cat([x[:half], f.round_to(x[half:], self._format)]) for x in (k, v)]
        self._bound[group, layer] = rounded[0], rounded[1]


class TwinOps(ReferenceOps):
    """A step of two equal requests: every value's first half is plain, its second half rounded."""

    def __init__(
        self,
        weights: WeightStore,
        rows: StepRows,
        kv_format: KVFormat,
        kinds: Mapping[str, ActivationKind],
    ) -> None:
        super().__init__(weights, rows, _TwinStore(rows, kv_format))
        self._kv_format = kv_format
        self._kinds = kinds

    def linear(self, x: Tensor, weight: str, bias: str | None = None) -> Tensor:
        half = x.shape[0] // 2
        rounded = round_activations(x[half:], self._kinds[weight])
        return super().linear(torch.cat([x[:half], rounded]), weight, bias)

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
        (begin, middle), (_, end) = pairwise(self._rows.spans)
        shape = {"heads": heads, "kv_heads": kv_heads}
        k, v, at = self._store.read(group, layer, 0)
        plain = f.attend(
            q[begin:middle], k, v, at, at, **shape, scale=scale, window=window, soft_cap=soft_cap
        )
        k, v, at = self._store.read(group, layer, 1)
        rounded = rounded_attend(
            q[middle:end], k, v, at, **shape, scale=scale, window=window, soft_cap=soft_cap,
            kv_format=self._kv_format,
        )  # fmt: skip
        return self._done(torch.cat([plain, rounded]))


def twin_logits(
    program: Program,
    ids: list[int],
    positions: list[int],
    kv_format: KVFormat,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Logits [len(positions), V] of the text by plain mathematics in `dtype`, and with the
    contract's roundings. No cache code is involved: attention is dense."""
    n = len(ids)
    rows = StepRows(
        tokens=torch.tensor(ids + ids),
        positions=torch.arange(n).repeat(2),
        spans=(0, n, 2 * n),
        logit_rows=torch.tensor([*positions, *(n + p for p in positions)]),
        prompt_rows=torch.zeros(0, dtype=torch.int64),
    )
    kinds = {name: activation_kind(tensor) for name, tensor in program.weights.items()}
    ops = TwinOps(WeightStore(program.weights, dtype, 0), rows, kv_format, kinds)
    with torch.no_grad():
        program.step(ops)
    plain, rounded = ops.outputs["logits"].chunk(2)
    return plain, rounded
