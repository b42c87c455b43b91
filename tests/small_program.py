"""A small model as a bare ops program, with random float32 weights: no file, no torch.

Two KV groups (full and window 40), QK-norm, both rotary layouts, a split and a concat, soft-capped
logits: every op but the learned-position ones appears. Batches for it come from `Sequence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.ops.batch import Batch, GroupBatch
from headrace.ops.contract import Activation, Ops, RopeLayout, RopeSpec, Rows, V
from headrace.ops.kv import KVGroupSpec
from headrace.quant.formats import F32
from headrace.quant.tensor import HostTensor

E, F, H, K, D, VOCAB, CONTEXT, WINDOW = 40, 72, 6, 2, 10, 101, 600, 40


def _tensor(values: npt.NDArray[np.float32]) -> HostTensor:
    rows = values.reshape(-1, values.shape[-1])
    return HostTensor(F32, values.shape, np.ascontiguousarray(rows).view(np.uint8))


def _rope(layout: RopeLayout, base: float) -> RopeSpec:
    frequencies = tuple(base ** (-2.0 * i / D) for i in range(D // 2))
    return RopeSpec(D, frequencies, layout)


@dataclass(frozen=True)
class SmallProgram:
    """An ops.Program of 3 layers; layer 1 attends in a window."""

    weights: Mapping[str, HostTensor]
    num_layers: int = 3
    hidden_size: int = E
    vocab_size: int = VOCAB
    max_context: int = CONTEXT
    kv_groups: tuple[KVGroupSpec, ...] = (
        KVGroupSpec("full", (0, 2), K, D, D),
        KVGroupSpec("window40", (1,), K, D, D, window=WINDOW),
    )

    def step(self, ops: Ops[V]) -> None:
        x = ops.scale(ops.embed("embed"), 1.5)
        for i in range(self.num_layers):
            with ops.layer(i):
                x = ops.add(x, self._attention(ops, i, ops.rms_norm(x, "norm", 1e-5)))
                y = ops.layer_norm(x, "norm", "norm_bias", 1e-5)
                gate, up = ops.linear(y, f"{i}.gate"), ops.linear(y, f"{i}.up")
                mixed = ops.gated(gate, up, Activation.SILU if i else Activation.GELU_TANH)
                x = ops.add(ops.gelu(ops.linear(mixed, f"{i}.down", "norm_bias")), x)
        ops.output("hidden", x)
        self._head(ops, ops.rows(x, Rows.LOGIT_ROWS))

    def prompt_logits(self, ops: Ops[V], hidden: V) -> None:
        self._head(ops, ops.rows(hidden, Rows.PROMPT_ROWS))

    def final_hidden(self, ops: Ops[V], hidden: V) -> None:
        chosen = ops.rows(hidden, Rows.HIDDEN_ROWS)
        ops.output("final", ops.rms_norm(chosen, "norm", 1e-5))

    def _head(self, ops: Ops[V], x: V) -> None:
        ops.output("logits", ops.soft_cap(ops.linear(ops.rms_norm(x, "norm", 1e-5), "embed"), 8.0))

    def _attention(self, ops: Ops[V], i: int, x: V) -> V:
        q, k, v = ops.split(ops.linear(x, f"{i}.qkv"), (H * D, K * D, K * D))
        q = ops.rms_norm(q, "head_norm", 1e-5, groups=H)
        rope = _rope(RopeLayout.INTERLEAVED if i == 1 else RopeLayout.HALF, 100.0 + i)
        q, k = ops.rope(q, H, rope), ops.rope(k, K, rope)
        k = ops.concat(ops.split(k, (K * D - 6, 6)))
        group, place = (1, 0) if i == 1 else (0, i // 2)
        ops.kv_write(k, v, group=group, layer=place, kv_heads=K)
        mixed = ops.attend(
            q,
            group=group,
            layer=place,
            heads=H,
            kv_heads=K,
            scale=D**-0.5,
            window=WINDOW if i == 1 else None,
            soft_cap=20.0 if i == 2 else None,
        )
        return ops.linear(mixed, f"{i}.o")


def small_program(seed: int = 0) -> SmallProgram:
    random = np.random.default_rng(seed)

    def matrix(n: int, k: int) -> HostTensor:
        return _tensor((random.standard_normal((n, k)) * 1.3 / k**0.5).astype(np.float32))

    weights = {
        "embed": _tensor(random.standard_normal((VOCAB, E)).astype(np.float32)),
        "norm": _tensor((1 + 0.2 * random.standard_normal(E)).astype(np.float32)),
        "norm_bias": _tensor((0.2 * random.standard_normal(E)).astype(np.float32)),
        "head_norm": _tensor((1 + 0.2 * random.standard_normal(D)).astype(np.float32)),
    }
    for i in range(3):
        weights |= {
            f"{i}.qkv": matrix((H + 2 * K) * D, E),
            f"{i}.o": matrix(E, H * D),
            f"{i}.gate": matrix(F, E),
            f"{i}.up": matrix(F, E),
            f"{i}.down": matrix(E, F),
        }
    return SmallProgram(weights)


@dataclass
class Stream:
    """One request: its ids and, per KV group, the blocks its positions lie in."""

    ids: npt.NDArray[np.int32]
    blocks: tuple[npt.NDArray[np.int32], ...]  # per group, column → block
    done: int = field(default=0)

    @property
    def left(self) -> int:
        return len(self.ids) - self.done


def batch_of(
    parts: Sequence[tuple[Stream, int]],
    block_size: int,
    *,
    logits: str = "all",
    prompt: bool = False,
) -> Batch:
    """The next n tokens of each stream as one step; advances the streams.

    logits: "all" rows, or the "last" of each stream. prompt: prompt_rows = all rows.
    """
    tokens, positions, spans, lens, last = [], [], [0], [], []
    slots: list[list[npt.NDArray[np.int32]]] = [[] for _ in parts[0][0].blocks]
    for stream, n in parts:
        at = np.arange(stream.done, stream.done + n, dtype=np.int32)
        tokens.append(stream.ids[at])
        positions.append(at)
        for g, table in enumerate(stream.blocks):
            slots[g].append(table[at // block_size] * block_size + at % block_size)
        stream.done += n
        spans.append(spans[-1] + n)
        lens.append(stream.done)
        last.append(spans[-1] - 1)
    rows = np.arange(spans[-1], dtype=np.int32)
    groups = tuple(
        GroupBatch(
            np.concatenate(slots[g]).astype(np.int32),
            np.stack([stream.blocks[g] for stream, _ in parts]).astype(np.int32),
            np.zeros(len(parts), np.int32),
        )
        for g in range(len(slots))
    )
    return Batch(
        np.concatenate(tokens).astype(np.int32),
        np.concatenate(positions)[None].astype(np.int32),
        np.array(spans, np.int32),
        np.array(lens, np.int32),
        rows if logits == "all" else np.array(last, np.int32),
        rows if prompt else np.zeros(0, np.int32),
        groups,
    )


def streams(
    lengths: Sequence[int], num_groups: int, block_size: int, vocab: int, seed: int = 0
) -> tuple[list[Stream], int]:
    """Streams of random ids on shuffled blocks, and how many blocks each group needs."""
    random = np.random.default_rng(seed)
    columns = max(-(-n // block_size) for n in lengths)
    total = columns * len(lengths) + 3
    orders = [random.permutation(total).astype(np.int32) for _ in range(num_groups)]
    result = [
        Stream(
            random.integers(0, vocab, n).astype(np.int32),
            tuple(order[i * columns : (i + 1) * columns] for order in orders),
        )
        for i, n in enumerate(lengths)
    ]
    return result, total
