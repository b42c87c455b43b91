"""Recorder: answers a program's calls by writing them down, with every shape checked.

A misfit is a bug in a model file and raises ShapeError with the op, the dimension and both sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.ops.contract import Activation, RopeSpec, Rows, ShapeError
from headrace.ops.kv import KVGroupSpec
from headrace.ops.program import Outline
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


def record(program: Outline) -> Recording:
    """Runs the program once on a Recorder: the step, then logits of prompt rows, then final hidden
    values; a segment each."""
    weights = program.weights

    def shape_of(weight: str) -> tuple[int, ...]:
        if weight not in weights:
            raise ShapeError(f"the program uses weight {weight}, which the model does not have")
        return weights[weight].shape

    recorder = Recorder(shape_of, program.kv_groups)
    program.step(recorder)
    hidden = recorder.outputs[0]["hidden"]
    recorder.next_segment()
    program.prompt_logits(recorder, hidden)
    recorder.next_segment()
    program.final_hidden(recorder, hidden)
    return recorder.finish()


class Recorder:
    """Implements Ops[Value]. shape_of: logical weight name → shape."""

    def __init__(
        self, shape_of: Callable[[str], tuple[int, ...]], kv_groups: Sequence[KVGroupSpec]
    ) -> None:
        self._shape_of = shape_of
        self._kv_groups = tuple(kv_groups)
        self._segments: list[list[Op]] = [[]]
        self.outputs: list[dict[str, Value]] = [{}]
        self._num_values = 0
        self._layer: int | None = None

    def next_segment(self) -> None:
        """What follows is run on its own, after the segment so far."""
        self._segments.append([])
        self.outputs.append({})

    def finish(self) -> Recording:
        return Recording(
            tuple(tuple(s) for s in self._segments), tuple(self.outputs), self._num_values
        )

    # ---- the vocabulary -------------------------------------------------------------------------

    def embed(self, weight: str, index: str = "tokens") -> Value:
        if index not in ("tokens", "positions"):
            raise ShapeError(f'embed {weight}: index "{index}" is not "tokens" or "positions"')
        _, columns = self._matrix("embed", weight)
        out = self._value(Rows.TOKENS, columns)
        self._emit(Embed(self._layer, weight, index, out))
        return out

    def rms_norm(self, x: Value, weight: str, eps: float, groups: int = 1) -> Value:
        self._vector("rms_norm", weight, "C / groups", self._per("rms_norm", x, groups, "groups"))
        out = self._value(x.rows, x.columns)
        self._emit(RmsNorm(self._layer, x, weight, eps, groups, out))
        return out

    def layer_norm(self, x: Value, weight: str, bias: str, eps: float) -> Value:
        self._vector("layer_norm", weight, "C", x.columns)
        self._vector("layer_norm", bias, "C", x.columns)
        out = self._value(x.rows, x.columns)
        self._emit(LayerNorm(self._layer, x, weight, bias, eps, out))
        return out

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        n, k = self._matrix("linear", weight)
        _fit(f"linear {weight}", "K", x.columns, k)
        if bias is not None:
            self._vector("linear", bias, "N", n)
        out = self._value(x.rows, n)
        self._emit(Linear(self._layer, x, weight, bias, out))
        return out

    def split(self, x: Value, columns: Sequence[int]) -> tuple[Value, ...]:
        _fit("split", "sum of columns", sum(columns), x.columns)
        parts, offset = [], x.offset
        for width in columns:
            if width < 1:
                raise ShapeError(f"split: a part of {width} columns")
            parts.append(self._view(x, offset, width))
            offset += width
        return tuple(parts)

    def concat(self, xs: Sequence[Value]) -> Value:
        if not xs:
            raise ShapeError("concat: nothing to join")
        for x in xs:
            _fit_rows("concat", x, xs[0])
        out = self._value(xs[0].rows, sum(x.columns for x in xs))
        offset = 0
        for x in xs:
            part = self._view(out, offset, x.columns)
            self._emit(Unary(self._layer, x, UnaryKind.COPY, 0.0, part))
            offset += x.columns
        return out

    def rope(self, x: Value, heads: int, spec: RopeSpec) -> Value:
        _fit_tokens("rope", x)
        head_dim = self._per("rope", x, heads, "heads")
        if spec.rotary_dim > head_dim or spec.rotary_dim != 2 * len(spec.frequencies):
            raise ShapeError(
                f"rope: rotary_dim {spec.rotary_dim} with {len(spec.frequencies)} frequencies "
                f"in heads of {head_dim}"
            )
        out = self._value(x.rows, x.columns)
        self._emit(Rope(self._layer, x, heads, spec, out))
        return out

    def kv_write(self, k: Value, v: Value, *, group: int, layer: int, kv_heads: int) -> None:
        spec = self._kv_group("kv_write", group, layer, kv_heads)
        _fit_tokens("kv_write", k)
        _fit_tokens("kv_write", v)
        _fit("kv_write", "K·Dk", k.columns, kv_heads * spec.k_dim)
        _fit("kv_write", "K·Dv", v.columns, kv_heads * spec.v_dim)
        self._emit(KVWrite(self._layer, k, v, group, layer, kv_heads))

    def attend(
        self,
        q: Value,
        *,
        group: int,
        layer: int,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
    ) -> Value:
        spec = self._kv_group("attend", group, layer, kv_heads)
        _fit_tokens("attend", q)
        _fit("attend", "H·D", q.columns, heads * spec.k_dim)
        _fit("attend", "H mod K", heads % kv_heads, 0)
        if window is not None and window < 1:
            raise ShapeError(f"attend: window {window}")
        out = self._value(q.rows, heads * spec.v_dim)
        self._emit(
            Attend(self._layer, q, group, layer, heads, kv_heads, scale, window, soft_cap, out)
        )
        return out

    def gated(self, gate: Value, up: Value, activation: Activation) -> Value:
        _fit_same("gated", gate, up)
        out = self._value(gate.rows, gate.columns)
        self._emit(Gated(self._layer, gate, up, activation, out))
        return out

    def gelu(self, x: Value) -> Value:
        return self._unary(x, UnaryKind.GELU, 0.0)

    def add(self, a: Value, b: Value) -> Value:
        _fit_same("add", a, b)
        out = self._value(a.rows, a.columns)
        self._emit(Add(self._layer, a, b, out))
        return out

    def scale(self, x: Value, factor: float) -> Value:
        return self._unary(x, UnaryKind.SCALE, factor)

    def soft_cap(self, x: Value, cap: float) -> Value:
        return self._unary(x, UnaryKind.SOFT_CAP, cap)

    def rows(self, x: Value, which: Rows) -> Value:
        _fit_tokens("rows", x)
        if which is Rows.TOKENS:
            return x
        out = self._value(which, x.columns)
        self._emit(Select(self._layer, x, out))
        return out

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        outer, self._layer = self._layer, index
        try:
            yield
        finally:
            self._layer = outer

    def output(self, name: str, x: Value) -> None:
        if name in self.outputs[-1]:
            raise ShapeError(f'output "{name}" is named twice')
        self.outputs[-1][name] = x

    # ---- values and checks ----------------------------------------------------------------------

    def _emit(self, op: Op) -> None:
        self._segments[-1].append(op)

    def _value(self, rows: Rows, columns: int) -> Value:
        self._num_values += 1
        number = self._num_values - 1
        return Value(number, rows, columns, storage=number, offset=0)

    def _view(self, x: Value, offset: int, columns: int) -> Value:
        self._num_values += 1
        return Value(self._num_values - 1, x.rows, columns, x.storage, offset)

    def _unary(self, x: Value, kind: UnaryKind, value: float) -> Value:
        out = self._value(x.rows, x.columns)
        self._emit(Unary(self._layer, x, kind, value, out))
        return out

    def _matrix(self, op: str, weight: str) -> tuple[int, int]:
        shape = self._shape_of(weight)
        if len(shape) != 2:
            raise ShapeError(f"{op} {weight}: shape {shape} is not a matrix")
        return shape[0], shape[1]

    def _vector(self, op: str, weight: str, dimension: str, size: int) -> None:
        shape = self._shape_of(weight)
        if len(shape) != 1:
            raise ShapeError(f"{op} {weight}: shape {shape} is not a vector")
        _fit(f"{op} {weight}", dimension, shape[0], size)

    def _per(self, op: str, x: Value, parts: int, name: str) -> int:
        if parts < 1 or x.columns % parts != 0:
            raise ShapeError(f"{op}: {x.columns} columns in {parts} {name}")
        return x.columns // parts

    def _kv_group(self, op: str, group: int, layer: int, kv_heads: int) -> KVGroupSpec:
        if not 0 <= group < len(self._kv_groups):
            raise ShapeError(f"{op}: there is no KV group {group}")
        spec = self._kv_groups[group]
        if not 0 <= layer < len(spec.layers):
            raise ShapeError(f"{op}: layer {layer} of KV group {spec.name} ({len(spec.layers)})")
        _fit(f"{op} {spec.name}", "K", kv_heads, spec.kv_heads)
        return spec


def _fit(where: str, dimension: str, got: int, want: int) -> None:
    if got != want:
        raise ShapeError(f"{where}: {dimension} is {got}, not {want}")


def _fit_rows(op: str, a: Value, b: Value) -> None:
    if a.rows is not b.rows:
        raise ShapeError(f"{op}: rows are {a.rows.value} and {b.rows.value}")


def _fit_same(op: str, a: Value, b: Value) -> None:
    _fit_rows(op, a, b)
    _fit(op, "C", b.columns, a.columns)


def _fit_tokens(op: str, x: Value) -> None:
    if x.rows is not Rows.TOKENS:
        raise ShapeError(f"{op}: works on all tokens' rows, not on {x.rows.value}")
