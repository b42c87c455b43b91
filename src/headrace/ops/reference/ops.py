"""ReferenceOps: a program's calls answered at once, with torch tensors [rows, columns].

One object serves one step. Where keys and values live is the business of a `KVStore`: `CallStore`
binds what this very call wrote and nothing else, so a model run on it contains no cache code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from headrace.ops.contract import Activation, RopeSpec, Rows, ShapeError
from headrace.ops.kv import KVFormat
from headrace.ops.reference import functions as f
from headrace.ops.reference.weights import WeightStore


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of one step. tokens, positions: int64 [T]; spans: R + 1 row borders of the requests;
    logit_rows, prompt_rows: int64 row numbers; prompt_rows also those of final hidden values."""

    tokens: Tensor
    positions: Tensor
    spans: tuple[int, ...]
    logit_rows: Tensor
    prompt_rows: Tensor


class KVStore(Protocol):
    """Where keys and values of a step go, and where attention finds them."""

    def write(self, group: int, layer: int, k: Tensor, v: Tensor) -> None:
        """k [T, K·Dk], v [T, K·Dv] of the step's rows; rounds to the KV number format."""
        ...

    def read(self, group: int, layer: int, request: int) -> tuple[Tensor, Tensor, Tensor]:
        """k [S, ·], v [S, ·], positions int64 [S] that `request` holds, in order."""
        ...


class CallStore:
    """Keys and values of this call alone: every request starts at position 0."""

    def __init__(self, rows: StepRows, kv_format: KVFormat | None = None) -> None:
        self._rows = rows
        self._format = kv_format
        self._bound: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def write(self, group: int, layer: int, k: Tensor, v: Tensor) -> None:
        self._bound[group, layer] = f.round_to(k, self._format), f.round_to(v, self._format)

    def read(self, group: int, layer: int, request: int) -> tuple[Tensor, Tensor, Tensor]:
        own = slice(self._rows.spans[request], self._rows.spans[request + 1])
        k, v = self._bound[group, layer]
        return k[own], v[own], self._rows.positions[own]


@dataclass(slots=True)
class Taps:
    """What an observer wants to keep from a step.

    linear_inputs: weight name → x [rows, K] of the `linear` calls with it, in order.
    layer_outputs: layer → the last value computed in that layer's scope (its residual stream).
    """

    linear_inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    layer_outputs: dict[int, Tensor] = field(default_factory=dict)


class ReferenceOps:
    """Implements `Ops[Tensor]`. `outputs` holds what the program named."""

    def __init__(
        self, weights: WeightStore, rows: StepRows, store: KVStore, taps: Taps | None = None
    ) -> None:
        self.outputs: dict[str, Tensor] = {}
        self._weights = weights
        self._rows = rows
        self._store = store
        self._taps = taps
        self._last: Tensor | None = None

    def embed(self, weight: str, index: str = "tokens") -> Tensor:
        ids = {"tokens": self._rows.tokens, "positions": self._rows.positions}[index]
        return self._done(self._weights.rows(weight, ids))

    def rms_norm(self, x: Tensor, weight: str, eps: float, groups: int = 1) -> Tensor:
        vector = self._weights.vector(weight)
        _check(x.shape[1] == vector.shape[0] * groups, f"rms_norm {weight}", x, vector)
        return self._done(f.rms_norm(x, vector, eps, groups))

    def layer_norm(self, x: Tensor, weight: str, bias: str, eps: float) -> Tensor:
        w, b = self._weights.vector(weight), self._weights.vector(bias)
        _check(x.shape[1] == w.shape[0] == b.shape[0], f"layer_norm {weight}", x, w, b)
        return self._done(f.layer_norm(x, w, b, eps))

    def linear(self, x: Tensor, weight: str, bias: str | None = None) -> Tensor:
        if self._taps is not None:
            self._taps.linear_inputs.setdefault(weight, []).append(x)
        parts = []
        for matrix in self._weights.slices(weight):
            _check(x.shape[1] == matrix.shape[1], f"linear {weight}", x, matrix)
            parts.append(x @ matrix.T)
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if bias is not None:
            b = self._weights.vector(bias)
            _check(y.shape[1] == b.shape[0], f"linear {bias}", y, b)
            y = y + b
        return self._done(y)

    def split(self, x: Tensor, columns: Sequence[int]) -> tuple[Tensor, ...]:
        _check(x.shape[1] == sum(columns), f"split {tuple(columns)}", x)
        return torch.split(x, list(columns), dim=1)

    def concat(self, xs: Sequence[Tensor]) -> Tensor:
        return self._done(torch.cat(list(xs), dim=1))

    def rope(self, x: Tensor, heads: int, spec: RopeSpec) -> Tensor:
        fits = x.shape[1] % heads == 0 and spec.rotary_dim <= x.shape[1] // heads
        _check(fits and spec.rotary_dim == 2 * len(spec.frequencies), f"rope of {heads} heads", x)
        return self._done(f.rope(x, self._rows.positions, heads, spec))

    def kv_write(self, k: Tensor, v: Tensor, *, group: int, layer: int, kv_heads: int) -> None:
        fits = k.shape[1] % kv_heads == 0 and v.shape[1] % kv_heads == 0
        _check(fits, f"kv_write of {kv_heads} heads", k, v)
        self._store.write(group, layer, k, v)

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
        results = []
        for request, (begin, end) in enumerate(pairwise(self._rows.spans)):
            k, v, held = self._store.read(group, layer, request)
            _check(q.shape[1] * kv_heads == k.shape[1] * heads, f"attend of {heads} heads", q, k)
            results.append(
                f.attend(
                    q[begin:end],
                    k,
                    v,
                    self._rows.positions[begin:end],
                    held,
                    heads=heads,
                    kv_heads=kv_heads,
                    scale=scale,
                    window=window,
                    soft_cap=soft_cap,
                )
            )
        return self._done(torch.cat(results))

    def gated(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        _check(gate.shape == up.shape, "gated", gate, up)
        return self._done(f.gated(gate, up, activation))

    def gelu(self, x: Tensor) -> Tensor:
        return self._done(f.gelu(x))

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        _check(a.shape == b.shape, "add", a, b)
        return self._done(a + b)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return self._done(f.scale(x, factor))

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return self._done(f.capped(x, cap))

    def rows(self, x: Tensor, which: Rows) -> Tensor:
        if which is Rows.TOKENS:
            return x
        chosen = self._rows.logit_rows if which is Rows.LOGIT_ROWS else self._rows.prompt_rows
        return self._done(x[chosen])

    def layer(self, index: int) -> AbstractContextManager[None]:
        return self._layer(index)

    def output(self, name: str, x: Tensor) -> None:
        self.outputs[name] = x

    @contextmanager
    def _layer(self, index: int) -> Iterator[None]:
        yield
        if self._taps is not None and self._last is not None:
            self._taps.layer_outputs[index] = self._last

    def _done(self, value: Tensor) -> Tensor:
        self._last = value
        return value


def _check(fits: bool, what: str, *values: Tensor) -> None:
    if not fits:
        shapes = ", ".join(str(tuple(v.shape)) for v in values)
        raise ShapeError(f"{what} does not fit {shapes}")
