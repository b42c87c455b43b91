"""A recorded program: the calls a model made, as data.

    segments[0]   the whole step: embed … logits of Batch.logit_rows
    segments[1]   logits of some of Batch.prompt_rows, from the "hidden" value segment 0 left behind

A value is written once (single assignment), or piecewise through views of it. This file knows no
weights, no memory and no kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum

from headrace.ops.contract import Activation, RopeSpec, Rows


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 matrix [rows, columns]: columns offset … offset + columns of value `storage`.

    storage = id for a value with memory of its own, which then has offset 0.
    """

    id: int
    rows: Rows
    columns: int
    storage: int
    offset: int

    def __str__(self) -> str:
        part = "" if self.storage == self.id else f"@{self.storage}+{self.offset}"
        return f"%{self.id}{part}[{self.rows.value}, {self.columns}]"

    def overlaps(self, other: Value) -> bool:
        """Whether the two share a column of one storage."""
        return (
            self.storage == other.storage
            and self.offset < other.offset + other.columns
            and other.offset < self.offset + self.columns
        )


class ActivationKind(Enum):
    """How a matmul wants its activations; the weight's format decides. Values as in step.h."""

    F32 = 0
    BF16 = 1
    INT8 = 2


@dataclass(frozen=True, slots=True)
class Prepared:
    """Activations [rows, columns] in the form of `kind`, in memory of their own."""

    id: int
    rows: Rows
    columns: int
    kind: ActivationKind

    def __str__(self) -> str:
        return f"%{self.id}[{self.rows.value}, {self.columns}, {self.kind.name.lower()}]"


class UnaryKind(Enum):
    """Element-wise ops of one input; `scale` and `soft_cap` use the op's value."""

    GELU = "gelu"
    SCALE = "scale"
    SOFT_CAP = "soft_cap"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Op:
    """One call. layer: the model layer whose scope it stands in, None outside of layers. fused: the
    ops of the unfused program that fusion made this one of; empty for an op that is one itself."""

    layer: int | None
    fused: tuple[Op, ...] = field(default=(), kw_only=True, repr=False)

    @property
    def parts(self) -> tuple[Op, ...]:
        """The ops of the unfused program that this one stands for, in order."""
        return self.fused or (self,)

    @property
    def inputs(self) -> tuple[Value | Prepared, ...]:
        """What the op reads, in the order of the op's arguments."""
        named = ((f.name, getattr(self, f.name)) for f in fields(self))
        return tuple(v for name, v in named if name != "out" and isinstance(v, Value | Prepared))

    @property
    def output(self) -> Value | Prepared | None:
        """What the op writes; None for kv_write."""
        out = getattr(self, "out", None)
        assert out is None or isinstance(out, Value | Prepared)
        return out

    @property
    def outputs(self) -> tuple[Value | Prepared, ...]:
        """The same as a tuple; a fused op may write several."""
        return () if self.output is None else (self.output,)

    def __str__(self) -> str:
        shown = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in ("layer", "out", "fused") or value is None:
                continue
            if isinstance(value, Value | Prepared):
                shown.append(str(value))
            elif isinstance(value, RopeSpec):
                shown.append(f"rotary {value.rotary_dim} {value.layout.value}")
            else:
                text = value.value if isinstance(value, Enum) else value
                shown.append(text if f.name == "weight" else f"{f.name}={text}")
        head = "" if self.output is None else f"{self.output} = "
        return f"{head}{type(self).__name__.lower()}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Embed(Op):
    weight: str
    index: str  # "tokens" | "positions"
    out: Value


@dataclass(frozen=True, slots=True)
class RmsNorm(Op):
    x: Value
    weight: str
    eps: float
    groups: int
    out: Value


@dataclass(frozen=True, slots=True)
class LayerNorm(Op):
    x: Value
    weight: str
    bias: str
    eps: float
    out: Value


@dataclass(frozen=True, slots=True)
class Linear(Op):
    x: Value
    weight: str
    bias: str | None
    out: Value


@dataclass(frozen=True, slots=True)
class Prepare(Op):
    """Rounds x to what matmuls of one kind of weight read. Made by fusion, not by models."""

    x: Value
    kind: ActivationKind
    out: Prepared


@dataclass(frozen=True, slots=True)
class Matmul(Op):
    """A Linear on prepared activations. Made by fusion, not by models."""

    x: Prepared
    weight: str
    bias: str | None
    out: Value


@dataclass(frozen=True, slots=True)
class Rope(Op):
    x: Value
    heads: int
    spec: RopeSpec
    out: Value
    decode_offset: int = 0  # −1: a fault that `verify` plants in steps of single tokens


@dataclass(frozen=True, slots=True)
class KVWrite(Op):
    """place: the layer inside the KV group."""

    k: Value
    v: Value
    group: int
    place: int
    kv_heads: int


@dataclass(frozen=True, slots=True)
class Attend(Op):
    q: Value
    group: int
    place: int
    heads: int
    kv_heads: int
    scale: float
    window: int | None
    soft_cap: float | None
    out: Value
    last_offset: int = 0  # 1: `verify`'s fault of a mask that shows one position too many
    head_shift: int = 0  # 1: `verify`'s fault of a wrong map from query heads to KV heads


@dataclass(frozen=True, slots=True)
class Gated(Op):
    gate: Value
    up: Value
    activation: Activation
    out: Value


@dataclass(frozen=True, slots=True)
class Unary(Op):
    x: Value
    kind: UnaryKind
    value: float
    out: Value


@dataclass(frozen=True, slots=True)
class Add(Op):
    a: Value
    b: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Select(Op):
    """The rows of x that Batch.logit_rows or Batch.prompt_rows name."""

    x: Value
    out: Value


class OneToken(Enum):
    """How workers share a row-wise record in a step of one token. Values as in row_wise.h."""

    ROW = 0  # one worker does it
    COLUMNS = 1  # each does some blocks of 32 columns
    COPIES = 2  # each does all of it: matmuls read a copy of their worker's own, without a barrier


@dataclass(frozen=True, slots=True)
class RowWise(Op):
    """Row-wise ops on one kind of rows, done one after the other on a few rows at a time: what they
    hand on stays in the first-level cache. Made by fusion.

    reads: what the parts find in memory. out: what ops behind it read; all else that the parts
    write is local to a worker. by_blocks: the parts go by blocks of 32 columns, all of one width.
    """

    reads: tuple[Value | Prepared, ...]
    out: tuple[Value | Prepared, ...]
    by_blocks: bool
    one_token: OneToken

    @property
    def inputs(self) -> tuple[Value | Prepared, ...]:
        return self.reads

    @property
    def output(self) -> Value | Prepared | None:
        return self.out[0] if len(self.out) == 1 else None

    @property
    def outputs(self) -> tuple[Value | Prepared, ...]:
        return self.out

    @property
    def rows(self) -> Rows:
        """The kind of its rows."""
        return rows_of(self.fused[0])

    def __str__(self) -> str:
        return " ; ".join(str(part) for part in self.fused)


def rows_of(op: Op) -> Rows:
    """The kind of rows an op works on."""
    return (op.outputs or op.inputs)[0].rows


@dataclass(frozen=True, slots=True)
class Recording:
    """segments: ops in order. outputs[i]: what segment i names. num_values: ids are below it."""

    segments: tuple[tuple[Op, ...], ...]
    outputs: tuple[Mapping[str, Value], ...]
    num_values: int

    def edited(self, edit: Callable[[Op], Op]) -> Recording:
        """The same recording with every op replaced by edit(op)."""
        segments = tuple(tuple(edit(op) for op in segment) for segment in self.segments)
        return replace(self, segments=segments)

    def ops(self) -> Iterator[Op]:
        """All ops of all segments, in order."""
        for segment in self.segments:
            yield from segment

    def linear_inputs(self) -> Mapping[str, Value]:
        """Taps: weight name of every Linear of the step → its input (for calibration)."""
        return {op.weight: op.x for op in self.segments[0] if isinstance(op, Linear)}

    def __str__(self) -> str:
        lines = []
        for i, (segment, outputs) in enumerate(zip(self.segments, self.outputs, strict=True)):
            lines.append(f"segment {i}:")
            for op in segment:
                scope = "" if op.layer is None else f"layer {op.layer}"
                lines.append(f"  {scope:10}{op}")
            lines.extend(f"  output    {name} = {value}" for name, value in outputs.items())
        return "\n".join(lines)
