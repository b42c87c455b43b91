"""The cost interpreter: a recorded program → operations and compulsory bytes of any step.

    Outline → record → CostModel.step(chunks) → StepCost

It reads the recording as the model wrote it, before fusion, so that no choice of ours moves the
limit; and shapes and number formats only, so that a config file is enough. What must cross the
memory bus in one step (docs/limits.md argues each rule):

    weights      each read once, however many rows or ops use it; a table: the rows gathered
    KV           positions before the step that a query sees, read once per layer; new ones, written
    activations  a value larger than the cache: written once, read once by each op that reads it;
                 a smaller one never leaves the cache

A new op adds its cases to `_operations` (or `_element_operations`) and `_weights_of`, and to
`_weight_bytes` if its rows choose what is read: an op with experts counts there the distinct ones
that a step's rows are expected to touch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.ops.contract import Activation, Rows
from headrace.ops.counts import Chunk, OpCost, StepCost, Unit
from headrace.ops.kv import KVElement, KVFormat
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
    Value,
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


def unit_of(name: str) -> Unit:
    """The unit in which numbers of a weight or KV format are multiplied."""
    return {"F32": Unit.F32, "F16": Unit.BF16, "BF16": Unit.BF16}.get(name.upper(), Unit.INT8)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step, as the ops see it. pairs, before: by window, sums over the chunks."""

    rows: Mapping[Rows, int]
    pairs: Mapping[int | None, int]
    before: Mapping[int | None, int]


@dataclass(frozen=True, slots=True)
class KnownOp:
    """What of an op is the same in every step. rows: the kind that it works on. values: what it
    reads and writes. operations: of one row; of attention, of one (query, position) pair."""

    op: Op
    rows: Rows
    values: tuple[Value, ...]
    weights: tuple[str, ...]
    format: str | None
    unit: Unit
    operations: int


class CostModel:
    """Counts steps of one model. Immutable.

    kv_format: number format of stored keys and values. cache_bytes: what can stay near the cores
    (the last-level cache); None: activations never cross the bus. activation_bytes: of one number.
    ops: the program's, with what is the same in every step. windows: of its attention, None = all
    positions.
    """

    def __init__(
        self,
        program: Outline,
        *,
        kv_format: KVElement = KVFormat.BF16,
        cache_bytes: int | None = None,
        activation_bytes: int = 4,
    ) -> None:
        self._weights = program.weights
        self._kv_groups = program.kv_groups
        self._kv_format = kv_format
        self.cache_bytes = cache_bytes
        self.activation_bytes = activation_bytes
        self.recording: Recording = record(program)
        self.ops = tuple(self._known(op) for op in self.recording.ops())
        attends = (op for op in self.recording.ops() if isinstance(op, Attend))
        self.windows: tuple[int | None, ...] = tuple(dict.fromkeys(op.window for op in attends))

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
        return sum(map(self.stored_bytes, self._used()))

    def step(
        self,
        chunks: Sequence[Chunk],
        *,
        num_logit_rows: int | None = None,
        num_prompt_rows: int = 0,
        num_hidden_rows: int = 0,
    ) -> StepCost:
        """One step, without the ops that get no rows. num_logit_rows: rows that go through the head
        (default: the last of each chunk). num_prompt_rows: rows whose logits are wanted as well,
        for prompt logprobs. num_hidden_rows: rows whose final hidden values are."""
        rows = {
            Rows.TOKENS: sum(c.num_new for c in chunks),
            Rows.LOGIT_ROWS: len(chunks) if num_logit_rows is None else num_logit_rows,
            Rows.PROMPT_ROWS: num_prompt_rows,
            Rows.HIDDEN_ROWS: num_hidden_rows,
        }
        step = _Step(
            rows,
            pairs={w: sum(c.visible_pairs(w) for c in chunks) for w in self.windows},
            before={w: sum(c.visible_before(w) for c in chunks) for w in self.windows},
        )
        read: set[str] = set()
        ran = (known for known in self.ops if rows[known.rows])
        return StepCost(tuple(self._cost(known, step, read) for known in ran), tuple(chunks))

    def _used(self) -> set[str]:
        return {name for known in self.ops for name in known.weights}

    # ---- the same in every step -----------------------------------------------------------------

    def _known(self, op: Op) -> KnownOp:
        name = self._format(op)
        multiplies = name is not None and isinstance(op, Linear | Attend)
        out = op.output or op.inputs[0]
        values = tuple(v for v in (*op.inputs, op.output) if isinstance(v, Value))
        return KnownOp(
            op,
            rows=out.rows,
            values=values,
            weights=_weights_of(op),
            format=name,
            unit=unit_of(name) if multiplies and name is not None else Unit.F32,
            operations=self._operations(op),
        )

    def _format(self, op: Op) -> str | None:
        """See OpCost.format."""
        match op:
            case Embed(weight=name) | Linear(weight=name):
                return self._weights[name].format.name
            case KVWrite() | Attend():
                return self._kv_format.value
        return None

    def _operations(self, op: Op) -> int:
        """See KnownOp.operations."""
        match op:
            case Linear(weight=name):
                matrix = self._weights[name]
                return 2 * matrix.rows * matrix.columns
            case Attend(group=group, heads=heads):  # QKᵀ and PV; the softmax is not counted
                spec = self._kv_groups[group]
                return 2 * (spec.k_dim + spec.v_dim) * heads
        return _element_operations(op)

    # ---- one step -------------------------------------------------------------------------------

    def _cost(self, known: KnownOp, step: _Step, read: set[str]) -> OpCost:
        """read: the weights that earlier ops of the step have read; the op's own are added."""
        op, rows = known.op, step.rows[known.rows]
        times = step.pairs[op.window] if isinstance(op, Attend) else rows
        kv_read_bytes, kv_write_bytes = self._kv_bytes(op, step)
        return OpCost(
            op,
            known.unit,
            operations=known.operations * times,
            weight_bytes=self._weight_bytes(known, rows, read),
            kv_read_bytes=kv_read_bytes,
            kv_write_bytes=kv_write_bytes,
            activation_bytes=self._spilled(known, step),
            format=known.format,
        )

    def _weight_bytes(self, known: KnownOp, rows: int, read: set[str]) -> int:
        if isinstance(known.op, Embed):  # gathers; a head that shares the table reads all of it
            num_rows, row_bytes = self.table(known.op)
            return min(rows, num_rows) * row_bytes
        unread = [name for name in known.weights if name not in read]
        read.update(unread)
        return sum(map(self.stored_bytes, unread))

    def table(self, op: Embed) -> tuple[int, int]:
        """Rows of the table that it gathers from, and bytes of one."""
        table = self._weights[op.weight]
        return table.rows, table.format.row_bytes(table.columns)

    def stored_bytes(self, weight: str) -> int:
        """Bytes of a weight as the file stores it."""
        return self._weights[weight].num_bytes

    def _kv_bytes(self, op: Op, step: _Step) -> tuple[int, int]:
        """(read, written). New entries have just been computed: attention reads them from memory
        only if they did not stay in the cache."""
        match op:
            case KVWrite(group=group):
                return 0, step.rows[Rows.TOKENS] * self.entry_bytes(group)
            case Attend(group=group, window=window):
                entry = self.entry_bytes(group)
                new_bytes = step.rows[Rows.TOKENS] * entry
                again = new_bytes if self._exceeds_cache(new_bytes) else 0
                return step.before[window] * entry + again, 0
        return 0, 0

    def entry_bytes(self, group: int) -> int:
        """Bytes of one position in one layer."""
        spec = self._kv_groups[group]
        return spec.kv_heads * (spec.k_dim + spec.v_dim) * self._kv_format.element_bytes

    def _spilled(self, known: KnownOp, step: _Step) -> int:
        """Bytes that the op moves of values which do not fit into the cache."""
        if self.cache_bytes is None:
            return 0
        moved = 0
        for value in known.values:
            row_bytes = value.columns * self.activation_bytes
            if self._exceeds_cache(step.rows[value.rows] * row_bytes):
                # Selecting touches the chosen rows only.
                rows = known.rows if isinstance(known.op, Select) else value.rows
                moved += step.rows[rows] * row_bytes
        return moved

    def _exceeds_cache(self, num_bytes: int) -> bool:
        return self.cache_bytes is not None and num_bytes > self.cache_bytes


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
        case Embed() | KVWrite() | Select():
            return 0
    raise AssertionError(f"no cost is known for {op}; is the recording fused?")
