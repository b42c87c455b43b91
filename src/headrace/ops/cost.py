"""The cost interpreter: a recorded program → operations and compulsory bytes of any step.

    Outline → record → CostModel.step(chunks) → StepCost

It reads the recording as the model wrote it, before fusion, so that no choice of ours moves the
limit; and shapes and number formats only, so that a config file is enough. What must cross the
memory bus in one step (docs/limits.md argues each rule):

    weights      each read once, however many rows or ops use it; a table: the rows gathered
    KV           positions before the step that a query sees, read once per layer; new ones, written
    activations  a value larger than the cache: written once, read once by each op that reads it;
                 a smaller one never leaves the cache

A new op adds one case to `CostModel._work` and one to `_weights_of`; an op with experts will count
there the distinct ones that its rows are expected to touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.ops.contract import Activation, Rows
from headrace.ops.counts import Chunk, OpCost, StepCost, Unit
from headrace.ops.kv import KVFormat, KVGroupSpec
from headrace.ops.program import Outline
from headrace.ops.record import record
from headrace.ops.recording import (
    Add,
    Attend,
    Embed,
    Gated,
    KVWrite,
    LayerNorm,
    Linear,
    Op,
    Recording,
    RmsNorm,
    Rope,
    Select,
    Unary,
    UnaryKind,
)

#: Operations per element of the element-wise ops; exp and tanh count as one.
_NORM_OPERATIONS = {RmsNorm: 4, LayerNorm: 7}
_GATE_OPERATIONS = {Activation.SILU: 5, Activation.GELU_TANH: 9}
_UNARY_OPERATIONS = {
    UnaryKind.GELU: 8,
    UnaryKind.SCALE: 1,
    UnaryKind.SOFT_CAP: 3,
    UnaryKind.COPY: 0,
}
_ROPE_OPERATIONS = 3  # a pair: four products, two sums


def unit_of_format(name: str) -> Unit:
    """The unit in which numbers of a weight or KV format are multiplied."""
    return {"F32": Unit.F32, "F16": Unit.BF16, "BF16": Unit.BF16}.get(name.upper(), Unit.INT8)


@dataclass(frozen=True, slots=True)
class _Step:
    """What a walk over the ops needs to know of one step."""

    chunks: tuple[Chunk, ...]
    rows: Mapping[Rows, int]

    def visible_pairs(self, window: int | None) -> int:
        return sum(c.visible_pairs(window) for c in self.chunks)

    def visible_before(self, window: int | None) -> int:
        return sum(c.visible_before(window) for c in self.chunks)


class CostModel:
    """Counts steps of one model. Immutable.

    kv_format: number format of stored keys and values. cache_bytes: what can stay near the cores
    (the last-level cache); None: activations never cross the bus. activation_bytes: of one number.
    """

    def __init__(
        self,
        program: Outline,
        *,
        kv_format: KVFormat = KVFormat.BF16,
        cache_bytes: int | None = None,
        activation_bytes: int = 4,
    ) -> None:
        self._weights = program.weights
        self._kv_groups = program.kv_groups
        self._kv_format = kv_format
        self._cache_bytes = cache_bytes
        self._activation_bytes = activation_bytes
        self.recording: Recording = record(program)

    @property
    def kv_bytes_per_position(self) -> int:
        """Bytes of one position of one sequence, over all layers."""
        return sum(g.bytes_per_position(self._kv_format) for g in self._kv_groups)

    @property
    def num_parameters(self) -> int:
        """Numbers in all weights that the program uses; a tied output matrix counts once."""
        weights = (self._weights[name] for name in self._used())
        return sum(w.rows * w.columns for w in weights)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that the program uses, as the file stores them."""
        return sum(self._weights[name].num_bytes for name in self._used())

    def step(
        self,
        chunks: Sequence[Chunk],
        *,
        num_logit_rows: int | None = None,
        num_prompt_rows: int = 0,
    ) -> StepCost:
        """One step, without the ops that get no rows. num_logit_rows: rows that go through the head
        (default: the last of each chunk). num_prompt_rows: rows whose logits are wanted as well,
        for prompt logprobs."""
        rows = {
            Rows.TOKENS: sum(c.num_new for c in chunks),
            Rows.LOGIT_ROWS: len(chunks) if num_logit_rows is None else num_logit_rows,
            Rows.PROMPT_ROWS: num_prompt_rows,
        }
        step = _Step(tuple(chunks), rows)
        read: set[str] = set()
        ran = (op for op in self.recording.ops() if rows[_rows_of(op)])
        return StepCost(tuple(self._cost(op, step, read) for op in ran))

    def _used(self) -> set[str]:
        return {name for op in self.recording.ops() for name in _weights_of(op)}

    def _cost(self, op: Op, step: _Step, read: set[str]) -> OpCost:
        """read: the weights that earlier ops of the step have read; the op's own are added."""
        cost = replace(self._work(op, step), activation_bytes=self._spilled(op, step))
        if isinstance(op, Embed):  # rows of a table: what a tied head reads is read all the same
            return cost
        unread = [name for name in _weights_of(op) if name not in read]
        read.update(unread)
        return replace(cost, weight_bytes=sum(self._weights[n].num_bytes for n in unread))

    def _work(self, op: Op, step: _Step) -> OpCost:
        """Operations, KV bytes, and the gathered rows of a table."""
        rows = step.rows[_rows_of(op)]
        match op:
            case Embed(weight=name):
                table = self._weights[name]
                gathered = min(rows, table.rows) * table.format.row_bytes(table.columns)
                return OpCost(op, Unit.F32, weight_bytes=gathered, format=table.format.name)
            case Linear(weight=name):
                matrix = self._weights[name]
                operations = 2 * rows * matrix.rows * matrix.columns
                unit = unit_of_format(matrix.format.name)
                return OpCost(op, unit, operations, format=matrix.format.name)
            case KVWrite():
                spec = self._kv_groups[op.group]
                return OpCost(
                    op,
                    Unit.F32,
                    kv_write_bytes=rows * self._entry_bytes(spec),
                    format=self._kv_format.value,
                )
            case Attend():
                return self._attention(op, step)
            case _:
                return OpCost(op, Unit.F32, _element_operations(op) * rows)

    def _attention(self, op: Attend, step: _Step) -> OpCost:
        """Causal: a query at p sees p + 1 positions, or its window; QKᵀ and PV, not the softmax."""
        spec = self._kv_groups[op.group]
        pairs = step.visible_pairs(op.window)
        positions = step.visible_before(op.window)
        new_bytes = step.rows[Rows.TOKENS] * self._entry_bytes(spec)
        again = new_bytes if self._exceeds_cache(new_bytes) else 0
        return OpCost(
            op,
            unit_of_format(self._kv_format.value),
            operations=2 * (spec.k_dim + spec.v_dim) * op.heads * pairs,
            kv_read_bytes=positions * self._entry_bytes(spec) + again,
            format=self._kv_format.value,
        )

    def _entry_bytes(self, spec: KVGroupSpec) -> int:
        """Bytes of one position in one layer."""
        return spec.kv_heads * (spec.k_dim + spec.v_dim) * self._kv_format.element_bytes

    def _spilled(self, op: Op, step: _Step) -> int:
        """Bytes that the op moves of values which do not fit into the cache."""
        moved = 0
        for value in (*op.inputs, op.output):
            if value is None:
                continue
            row_bytes = value.columns * self._activation_bytes
            if self._exceeds_cache(step.rows[value.rows] * row_bytes):
                touched = value if not isinstance(op, Select) else op.out
                moved += step.rows[touched.rows] * row_bytes
        return moved

    def _exceeds_cache(self, num_bytes: int) -> bool:
        return self._cache_bytes is not None and num_bytes > self._cache_bytes


def _rows_of(op: Op) -> Rows:
    """The rows that an op computes."""
    if isinstance(op, KVWrite):
        return op.k.rows
    assert op.output is not None
    return op.output.rows


def _weights_of(op: Op) -> tuple[str, ...]:
    """Names of the weights that an op reads."""
    match op:
        case Embed(weight=name) | RmsNorm(weight=name):
            return (name,)
        case LayerNorm(weight=name, bias=bias):
            return (name, bias)
        case Linear(weight=name, bias=bias):
            return (name,) if bias is None else (name, bias)
    return ()


def _element_operations(op: Op) -> int:
    """Operations of one row of an element-wise op."""
    match op:
        case RmsNorm(out=out) | LayerNorm(out=out):
            return _NORM_OPERATIONS[type(op)] * out.columns
        case Rope(heads=heads, spec=spec):
            return _ROPE_OPERATIONS * heads * spec.rotary_dim
        case Gated(activation=activation, out=out):
            return _GATE_OPERATIONS[activation] * out.columns
        case Unary(kind=kind, out=out):
            return _UNARY_OPERATIONS[kind] * out.columns
        case Add(out=out):
            return out.columns
        case Select():
            return 0
    raise AssertionError(f"no cost is known for {op}; is the recording fused?")
