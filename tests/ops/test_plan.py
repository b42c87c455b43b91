"""The memory plan, as a property: run on the planned buffers by workers of different speed, a
program computes what it computes on separate values."""

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
    Matmul,
    Op,
    Prepare,
    Prepared,
    Recording,
    Select,
    Value,
)
from small_program import small_program

C = 20
#: Rows of a step, by kind; no two alike, so that workers share them differently.
COUNTS = {Rows.TOKENS: 5, Rows.LOGIT_ROWS: 3, Rows.PROMPT_ROWS: 2}
WORKERS = 2
Floats = npt.NDArray[np.float64]
KV = dict[tuple[int, int], Floats]
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


def share(n: int, worker: int) -> slice:
    return slice(n * worker // WORKERS, n * (worker + 1) // WORKERS)


class Separate:
    """Every storage has memory of its own."""

    def __init__(self) -> None:
        self.memory: dict[int, Floats] = {}

    def at(self, value: Value | Prepared) -> Floats:
        storage = value.storage if isinstance(value, Value) else value.id
        offset = value.offset if isinstance(value, Value) else 0
        whole = self.memory.setdefault(storage, np.full((COUNTS[value.rows], 3 * C), np.nan))
        return whole[:, offset : offset + value.columns]


class Planned:
    """The plan's buffers."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.buffers = [np.full(size, np.nan) for size in made.buffers]

    def at(self, value: Value | Prepared) -> Floats:
        place, n = self.plan.places[value.id], COUNTS[value.rows]
        stride = place.stride or value.columns
        rows = self.buffers[place.buffer][: n * stride].reshape(n, stride)
        return rows[:, place.offset : place.offset + value.columns]


def work(memory: Separate | Planned, op: Op, number: int, kv: KV, worker: int) -> None:
    """One worker's share of an op: some function that tells ops, rows and columns apart.

    Matmuls and attention read all rows and share columns; `rows` reads anywhere; all others go row
    by row, as step.h promises.
    """
    inputs = [memory.at(v) for v in op.inputs]
    whole = isinstance(op, Matmul | Attend | Select)
    count = COUNTS[(op.output or op.inputs[0]).rows]
    rows = slice(0, count) if isinstance(op, Matmul | Attend) else share(count, worker)
    total = np.full((count, 1), number + 1.0)
    for k, x in enumerate(inputs):
        total += (k + 2.0) * (x.sum() if whole else x.sum(axis=1, keepdims=True))
    if isinstance(op, KVWrite):
        kv.setdefault((op.group, op.place), np.zeros((count, 1)))[rows] = total[rows]
        return
    if isinstance(op, Attend):
        total += kv.get((op.group, op.place), np.zeros((1, 1))).sum()
    assert op.output is not None
    columns = np.arange(op.output.columns)
    result = np.tanh(total / 50.0 + columns / 7.0)
    part = share(len(columns), worker) if isinstance(op, Matmul | Attend) else slice(None)
    memory.at(op.output)[rows, part] = result[rows, part]


def run(memory: Separate | Planned, ops: Sequence[tuple[int, Op]], kv: KV) -> None:
    for number, op in ops:
        for worker in range(WORKERS):
            work(memory, op, number, kv, worker)


def race(
    memory: Planned,
    ops: Sequence[tuple[int, Op]],
    barriers: Sequence[bool],
    kv: KV,
    random: np.random.Generator,
) -> None:
    """Workers at speeds of their own, except that nobody passes a barrier alone."""
    start = 0
    for end in (*(i for i, barrier in enumerate(barriers) if barrier and i), len(ops)):
        at = [start] * WORKERS
        while min(at) < end:
            worker = int(random.choice([w for w in range(WORKERS) if at[w] < end]))
            for _ in range(int(random.integers(1, 6))):
                if at[worker] < end:
                    number, op = ops[at[worker]]
                    work(memory, op, number, kv, worker)
                    at[worker] += 1
        start = end


def size(value: Value | Prepared) -> int:
    if isinstance(value, Prepared):
        return COUNTS[value.rows] * value.columns
    return COUNTS[value.rows] * max(row_stride(value, output=False), row_stride(value, output=True))


def check(recording: Recording, random: np.random.Generator, *, keep: bool) -> Plan:
    made = plan(recording, size, keep=keep)
    separate, planned = Separate(), Planned(made)
    kv_separate: KV = {}
    kv_planned: KV = {}
    # the step, then the prompt rows twice: they must not eat what they read
    for segment in (0, 1, 1):
        ops = list(enumerate(recording.segments[segment]))
        run(separate, ops, kv_separate)
        race(planned, ops, made.barriers[segment], kv_planned, random)
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
    assert len(shared.buffers) <= 22 < len(kept.buffers) / 3
    # per layer: qkv, o, gate + up, down; and the head, in both segments
    prepared = [op for op in recording.ops() if isinstance(op, Prepare)]
    assert len(prepared) == 3 * 4 + 2
    # row-by-row ops do not wait for each other, nor do independent linears
    assert sum(shared.barriers[0]) <= 10 * 3 + 3 < len(recording.segments[0])
