"""Memory of one way to run a model: weights, KV pools, activations, overhead. Pure functions.

Every part grows with context and concurrency or stays: a plan never fits at one length, fails at a
longer one and fits again.

For Headrace itself (packed weights) the parts are those of the native interpreter: matrices in
panels of 16 rows, buffers as its memory plan cuts them, rotary tables; tables that are only
gathered from are read from the mapped file and take no memory of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.engine.sizing import plan_pools
from headrace.ops.contract import RopeSpec, Rows
from headrace.ops.fuse import fuse
from headrace.ops.kv import KVElement
from headrace.ops.packed import activation_kind
from headrace.ops.plan import plan, row_stride
from headrace.ops.program import Outline
from headrace.ops.record import record
from headrace.ops.recording import (
    ActivationKind,
    LayerNorm,
    Linear,
    Prepared,
    Recording,
    RmsNorm,
    Rope,
    Value,
)
from headrace.quant.tensor import TensorSpec

#: What a `headrace serve` process takes besides, without an empty Python process: modules, threads
#: and their scratch, the HTTP side; and for every id of the vocabulary the tables of tokenizer and
#: grammars. Measured by tools/bench_plan.py --memory on models of 49,152 to 262,144 ids.
SERVER_BYTES = 51_000_000
ID_BYTES = 985
#: Of one position of a sequence: its id in Python lists and block tables.
POSITION_BYTES = 60
#: Of one sequence: request, sampler, detokenizer, and rows of every array of a step.
SEQUENCE_BYTES = 40_000
#: The buffers are laid out once, for a step of this size, so that larger ones only stretch them.
_USUAL_ROWS = {Rows.TOKENS: 512, Rows.LOGIT_ROWS: 8, Rows.PROMPT_ROWS: 8, Rows.HIDDEN_ROWS: 8}
_PANEL_ROWS, _PANEL_BYTES, _BLOCK = 16, 64, 32


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes. weights: as they lie in memory while the model runs. kv: the pools of blocks that the
    concurrency needs at the whole context. activations: buffers of the largest step. overhead: what
    the process takes besides."""

    weights: int
    kv: int
    activations: int
    overhead: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.overhead

    def to_dict(self) -> dict[str, int]:
        return {
            "weights": self.weights,
            "kv": self.kv,
            "activations": self.activations,
            "overhead": self.overhead,
            "total": self.total,
        }


class MemoryModel:
    """Plans the memory of one model. Immutable; recording the program is done once.

    packed: a `headrace serve` process; otherwise weights as stored and no overhead, which is that
    of an engine that nobody has chosen yet."""

    def __init__(self, program: Outline, *, packed: bool) -> None:
        self._program = program
        self._packed = packed
        self._fixed = SERVER_BYTES + ID_BYTES * program.vocab_size
        recording = record(program)
        stored = sum(w.num_bytes for w in program.weights.values())
        self._weights = packed_bytes(recording, program.weights) if packed else stored
        self._buffers = _buffers(recording, program.weights)
        specs = {op.spec for op in recording.ops() if isinstance(op, Rope)}
        self._rope_bytes = sum(_rope_bytes(spec) for spec in specs)

    def plan(
        self,
        *,
        context: int,
        concurrency: int,
        kv_format: KVElement,
        step_tokens: int,
        block_size: int = 16,
    ) -> MemoryPlan:
        """Memory for `concurrency` sequences of `context` positions each, in steps of at most
        step_tokens tokens."""
        pools = plan_pools(
            self._program.kv_groups,
            kv_format,
            block_size,
            budget_bytes=None,
            max_model_len=context,
            max_num_seqs=concurrency,
            max_chunk=step_tokens,
            frees_window=True,
        )
        # Memory is touched by use: no step has more tokens than all sequences together.
        tokens = min(step_tokens, context * concurrency)
        rows = {Rows.TOKENS: tokens, Rows.LOGIT_ROWS: concurrency}
        buffers = sum(
            max((rows.get(value.rows, 0) * row for value, row in values), default=0)
            for values in self._buffers
        )
        tables = context * self._rope_bytes
        overhead = self._fixed + concurrency * (SEQUENCE_BYTES + context * POSITION_BYTES)
        return MemoryPlan(
            weights=self._weights,
            kv=pools.total_bytes,
            activations=buffers + tables,
            overhead=overhead if self._packed else 0,
        )


def packed_bytes(recording: Recording, weights: Mapping[str, TensorSpec]) -> int:
    """Bytes of what the native interpreter keeps: linears' matrices in panels of 16 rows, vectors
    as float32 (ops/packed.py, native/src/pack.cpp)."""
    matrices = {op.weight for op in recording.ops() if isinstance(op, Linear)}
    vectors: set[str] = set()
    for op in recording.ops():
        match op:
            case Linear(bias=str(bias)):
                vectors.add(bias)
            case RmsNorm(weight=name):
                vectors.add(name)
            case LayerNorm(weight=name, bias=bias):
                vectors |= {name, bias}
    panels = sum(_matrix_bytes(weights[name]) for name in matrices)
    return panels + sum(4 * weights[name].rows * weights[name].columns for name in vectors)


def _matrix_bytes(weight: TensorSpec) -> int:
    fmt = weight.format
    whole = _ceil(weight.columns, max(_BLOCK, fmt.block_size))
    panel = _PANEL_ROWS * fmt.row_bytes(whole)
    return _ceil(weight.rows, _PANEL_ROWS) // _PANEL_ROWS * _ceil(panel, _PANEL_BYTES)


def _buffers(
    recording: Recording, weights: Mapping[str, TensorSpec]
) -> tuple[tuple[tuple[Value | Prepared, int], ...], ...]:
    """For each buffer of the native interpreter what lies in it in turn, and the bytes of a row."""
    fused = fuse(recording, lambda name: activation_kind(weights[name]))
    pinned = {v.storage for outputs in fused.outputs for v in outputs.values()}

    def row_bytes(value: Value | Prepared) -> int:
        if isinstance(value, Prepared):
            return _prepared_bytes(value)
        return 4 * row_stride(value, output=value.storage in pinned)

    layout = plan(fused, lambda value: _USUAL_ROWS[value.rows] * row_bytes(value))
    found: list[dict[int, tuple[Value | Prepared, int]]] = [{} for _ in layout.buffers]
    for op in fused.ops():
        for value in (*op.inputs, *op.outputs):
            if value.id in layout.places:
                place = layout.places[value.id]
                stride = _prepared_bytes(value) if place.stride == 0 else 4 * place.stride
                found[place.buffer][value.id] = value, stride
    return tuple(tuple(values.values()) for values in found)


def _prepared_bytes(value: Value | Prepared) -> int:
    """One row in the form that matmuls read (native/src/matmul.h)."""
    per_block = 128 if isinstance(value, Prepared) and value.kind is ActivationKind.F32 else 64
    size = _ceil(value.columns, _BLOCK) // _BLOCK * per_block
    return size + 64 if size % 4096 == 0 else size


def _rope_bytes(spec: RopeSpec) -> int:
    """Of a position: cosines and sines."""
    return 2 * 4 * len(spec.frequencies)


def _ceil(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
