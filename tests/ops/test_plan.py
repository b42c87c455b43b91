"""The memory plan, as a property: run on the planned buffers, with the ops between two barriers in
any order, a program computes what it computes on separate values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ops.contract import Activation, RopeSpec, Rows
from headrace.ops.fuse import fuse
from headrace.ops.kv import KVGroupSpec
from headrace.ops.plan import Plan, plan, row_stride
from headrace.ops.record import Recorder, record
from headrace.ops.recording import (
    ActivationKind,
    Attend,
    KVWrite,
    Op,
    Prepare,
    Prepared,
    Recording,
    Value,
)
from small_program import small_program

ROWS, C = 3, 20
Floats = npt.NDArray[np.float64]
SHAPES = {"table": (9, C), "square": (C, C), "wide": (3 * C, C), "narrow": (C, 3 * C), "norm": (C,)}


def random_recording(choices: Sequence[tuple[int, int, int]]) -> Recording:
    """A program of the chosen (op, input, other input) over values of C columns."""
    group = KVGroupSpec("full", (0, 1), 2, C // 2, C // 2)
    r = Recorder(lambda name: SHAPES[name], (group,))
    values = [r.embed("table")]
    for kind, i, j in choices:
        x, y = values[i % len(values)], values[j % len(values)]
        match kind:
            case 0:
                values.append(r.add(x, y))
            case 1:
                values.append(r.rope(x, 2, RopeSpec(2, (1.0,))))
            case 2:
                values.append(r.linear(x, "square"))
            case 3:
                values.extend(r.split(r.linear(x, "wide"), (C, C, C)))
            case 4:
                values.append(r.gated(x, y, Activation.SILU))
            case 5:
                values.append(r.linear(r.concat((x, y, x)), "narrow"))
            case 6:
                r.kv_write(x, y, group=0, layer=j % 2, kv_heads=2)
                values.append(attend(r, y, i % 2))
            case 7:
                values.append(r.rms_norm(x, "norm", 1e-5))
            case _:
                values.append(r.gelu(x))
    hidden = r.add(values[-1], values[0])
    r.output("hidden", hidden)
    r.output("logits", r.linear(r.rows(hidden, Rows.LOGIT_ROWS), "square"))
    r.next_segment()
    r.output("logits", r.gelu(r.linear(r.rows(hidden, Rows.PROMPT_ROWS), "square")))
    return r.finish()


def attend(r: Recorder, q: Value, layer: int) -> Value:
    return r.attend(q, group=0, layer=layer, heads=2, kv_heads=2, scale=1.0)


def compute(op: Op, number: int, inputs: Sequence[Floats], kv: dict[object, Floats]) -> Floats:
    """Some function of the inputs that tells ops and columns apart."""
    total = float(number + 1) + sum((k + 2.0) * x.sum() for k, x in enumerate(inputs))
    if isinstance(op, KVWrite):
        kv[op.group, op.place] = np.full((1, 1), total)
        return kv[op.group, op.place]
    if isinstance(op, Attend):
        total += kv.get((op.group, op.place), np.zeros((1, 1))).item()
    assert op.output is not None
    first = inputs[0] if inputs else np.zeros((ROWS, 1))
    columns = np.arange(op.output.columns) / 7.0
    return np.tanh(total / 50.0 + columns + first[:, :1] * 0.3) + np.zeros((ROWS, len(columns)))


class Separate:
    """Every storage has memory of its own."""

    def __init__(self) -> None:
        self.memory: dict[int, Floats] = {}

    def at(self, value: Value | Prepared) -> Floats:
        storage = value.storage if isinstance(value, Value) else value.id
        offset = value.offset if isinstance(value, Value) else 0
        whole = self.memory.setdefault(storage, np.full((ROWS, 3 * C), np.nan))
        return whole[:, offset : offset + value.columns]


class Planned:
    """The plan's buffers."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.buffers = [np.full(size, np.nan) for size in made.buffers]

    def at(self, value: Value | Prepared) -> Floats:
        place = self.plan.places[value.id]
        stride = place.stride or value.columns
        rows = self.buffers[place.buffer][: ROWS * stride].reshape(ROWS, stride)
        return rows[:, place.offset : place.offset + value.columns]


def run(
    memory: Separate | Planned, ops: Sequence[tuple[int, Op]], kv: dict[object, Floats]
) -> None:
    for number, op in ops:
        result = compute(op, number, [memory.at(v).copy() for v in op.inputs], kv)
        if op.output is not None:
            memory.at(op.output)[:] = result


def in_some_order(
    ops: Sequence[tuple[int, Op]], barriers: Sequence[bool], random: np.random.Generator
) -> list[tuple[int, Op]]:
    groups: list[list[tuple[int, Op]]] = [[]]
    for op, barrier in zip(ops, barriers, strict=True):
        if barrier:
            groups.append([])
        groups[-1].append(op)
    return [group[i] for group in groups for i in random.permutation(len(group))]


def size(value: Value | Prepared) -> int:
    if isinstance(value, Prepared):
        return ROWS * value.columns
    return ROWS * max(row_stride(value, output=False), row_stride(value, output=True))


def check(recording: Recording, random: np.random.Generator, *, keep: bool) -> Plan:
    made = plan(recording, size, keep=keep)
    separate, planned = Separate(), Planned(made)
    kv_separate: dict[object, Floats] = {}
    kv_planned: dict[object, Floats] = {}
    # the step, then the prompt rows twice: they must not eat what they read
    for segment in (0, 1, 1):
        ops = list(enumerate(recording.segments[segment]))
        run(separate, ops, kv_separate)
        run(planned, in_some_order(ops, made.barriers[segment], random), kv_planned)
        for outputs in recording.outputs[: segment + 1]:
            for value in outputs.values():
                expected = separate.at(value)
                assert np.isfinite(expected).all()
                assert np.array_equal(planned.at(value), expected)
    if keep:
        for op in recording.ops():
            if op.output is not None:
                assert np.array_equal(planned.at(op.output), separate.at(op.output))
    return made


choices = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=25
)


@settings(max_examples=300, deadline=None)
@given(choices, st.integers(0, 1 << 30), st.booleans())
def test_planned_memory_changes_nothing(
    picks: list[tuple[int, int, int]], seed: int, keep: bool
) -> None:
    recording = fuse(
        random_recording(picks),
        lambda name: ActivationKind.INT8 if name == "wide" else ActivationKind.F32,
    )
    check(recording, np.random.default_rng(seed), keep=keep)


def test_a_real_program_is_small_in_memory_and_shares_its_preparations() -> None:
    recording = fuse(record(small_program()), lambda name: ActivationKind.F32)
    kept = plan(recording, size, keep=True)
    shared = plan(recording, size)
    assert len(shared.buffers) <= 14 < len(kept.buffers) / 3
    # per layer: qkv, o, gate + up, down; and the head, in both segments
    prepared = [op for op in recording.ops() if isinstance(op, Prepare)]
    assert len(prepared) == 3 * 4 + 2
    # independent linears do not wait for each other: fewer meetings than ops
    assert sum(shared.barriers[0]) < len(recording.segments[0])
