"""The op vocabulary: the one language in which a model is written.

A model is a program: plain Python that calls the methods of `Ops`. Interpreters answer the calls:
`reference` with torch tensors, `native` by recording a step program, `cost` from the same recording
with operation and byte counts. A program never sees a shape, a tensor or a batch: values are
opaque, with static columns and a symbolic number of rows, so one recording serves every batch.

Dimension letters: T new tokens in the step (flat over requests), R requests, S context length,
E hidden, F intermediate, H query heads, K KV heads, D head dim, V vocabulary, L layers.
This file knows no device, file format or scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar


class Rows(Enum):
    """Symbolic row counts of a value."""

    TOKENS = "tokens"  # T: every new token of the step
    LOGIT_ROWS = "logit_rows"  # the rows of Batch.logit_rows
    PROMPT_ROWS = "prompt_rows"  # a few rows at a time of Batch.prompt_rows (prompt logprobs)
    HIDDEN_ROWS = "hidden_rows"  # a few rows at a time whose hidden values are wanted (embeddings)


class RopeLayout(Enum):
    """Which two elements of a head one rotation turns."""

    HALF = "half"  # (i, i + rot/2), as in Hugging Face checkpoints; canonical
    INTERLEAVED = "interleaved"  # (2i, 2i + 1)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """A rotary embedding (Su et al., arXiv:2104.09864). Tables are built once, in float64, at load.

    frequencies: rotary_dim/2 angular frequencies in radians per position, float64, with every
    scaling (llama3 factors, for example) already applied. rotary_dim ≤ head dim; the rest of a
    head passes through unchanged.
    """

    rotary_dim: int
    frequencies: tuple[float, ...]
    layout: RopeLayout = RopeLayout.HALF


class Activation(Enum):
    """The gate functions of `gated`: out = f(gate) · up."""

    SILU = "silu"  # g / (1 + exp(-g))
    GELU_TANH = "gelu_tanh"  # 0.5 g (1 + tanh(√(2/π) (g + 0.044715 g³)))


V = TypeVar("V")


class Ops(Protocol[V]):
    """What a program may ask for. `V` is the interpreter's own value type.

    Values are float32 [rows, columns] unless said otherwise. Weight arguments are logical names
    (`models/weights.py`). Every op raises ShapeError (a bug of ours) when columns do not fit.
    """

    def embed(self, weight: str, index: str = "tokens") -> V:
        """Rows of a table. weight: [V, E], any format → [T, E]. index: "tokens" | "positions".

        The table's rows are dequantised to float32 exactly; traffic: T rows, never the table.
        """
        ...

    def rms_norm(self, x: V, weight: str, eps: float, groups: int = 1) -> V:
        """y = x / √(mean(x²) + eps) · w over each of `groups` equal column slices.

        x: [·, C]; weight: [C / groups], shared by the slices (QK-norm uses groups = heads).
        Source: Zhang & Sennrich, arXiv:1910.07467.
        """
        ...

    def layer_norm(self, x: V, weight: str, bias: str, eps: float) -> V:
        """y = (x − mean) / √(var + eps) · w + b over the columns; biased variance."""
        ...

    def linear(self, x: V, weight: str, bias: str | None = None) -> V:
        """y = x Wᵀ (+ b). x: [·, K]; weight: [N, K], any number format; bias: [N] float32."""
        ...

    def split(self, x: V, columns: Sequence[int]) -> tuple[V, ...]:
        """Cuts the columns of x; sum(columns) = its columns. Views, no copy."""
        ...

    def concat(self, xs: Sequence[V]) -> V:
        """Joins values of equal rows along the columns."""
        ...

    def rope(self, x: V, heads: int, spec: RopeSpec) -> V:
        """Turns each head of x [T, heads · D] by its token's position (Batch.positions[0])."""
        ...

    def kv_write(self, k: V, v: V, *, group: int, layer: int, kv_heads: int) -> None:
        """Stores k [T, K·Dk] and v [T, K·Dv] for `layer` of KV group `group`, rounded to the KV
        number format. `layer` counts inside the group. Rows with slot −1 are not stored."""
        ...

    def attend(
        self,
        q: V,
        *,
        group: int,
        layer: int,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> V:
        """Causal attention of q [T, H·D] on what `kv_write` stored for (group, layer) → [T, H·Dv].

        A query at position p sees positions max(0, p − window + 1) … p of its own request.
        Query head h reads KV head h // (H / K). soft_cap: s ← cap · tanh(s / cap) after scaling.
        Operations ≈ 2·H·(Dk + Dv) per (query, visible position).
        """
        ...

    def gated(self, gate: V, up: V, activation: Activation) -> V:
        """f(gate) · up, element by element."""
        ...

    def gelu(self, x: V) -> V:
        """GELU, tanh form (GPT-2's gelu_new)."""
        ...

    def add(self, a: V, b: V) -> V:
        """a + b, equal shapes."""
        ...

    def scale(self, x: V, factor: float) -> V:
        """x · factor; factor is rounded to float32."""
        ...

    def soft_cap(self, x: V, cap: float) -> V:
        """cap · tanh(x / cap)."""
        ...

    def rows(self, x: V, which: Rows) -> V:
        """Selects the rows named by Batch.logit_rows or Batch.prompt_rows from [T, C]."""
        ...

    def layer(self, index: int) -> AbstractContextManager[None]:
        """Scope of decoder layer `index` (profiles, early exit, pipeline split)."""
        ...

    def output(self, name: str, x: V) -> None:
        """Names a value that survives the step: "logits", "hidden"."""
        ...


class ShapeError(AssertionError):
    """A program asked an op for shapes that do not fit: a bug in a model file."""
