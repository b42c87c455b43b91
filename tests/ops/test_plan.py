"""The memory plan, as a property: fused, and run on the planned buffers by workers of different
speed, a program computes what the unfused one computes on separate values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ops.barriers import Meet
from headrace.ops.contract import Activation, RopeSpec, Rows
from headrace.ops.fuse import fuse
from headrace.ops.kv import KVGroupSpec
from headrace.ops.plan import Plan, plan, row_stride
from headrace.ops.record import Recorder, record
from headrace.ops.recording import (
    ActivationKind,
    Add,
    Attend,
    Gated,
    KVWrite,
    Matmul,
    OneToken,
    Op,
    Prepare,
    Prepared,
    Recording,
    RowWise,
    Select,
    Unary,
    Value,
)
from headrace.ops.tiles import tile_of
from small_program import small_program

C = 84  # three blocks of 32
#: Rows of steps of several tokens and of one, by kind; workers share them differently.
SEVERAL = {Rows.TOKENS: 5, Rows.LOGIT_ROWS: 3, Rows.PROMPT_ROWS: 2, Rows.HIDDEN_ROWS: 2}
ONE = {Rows.TOKENS: 1, Rows.LOGIT_ROWS: 1, Rows.PROMPT_ROWS: 1, Rows.HIDDEN_ROWS: 1}
WORKERS = 2
Floats = npt.NDArray[np.float64]
KV = dict[tuple[int, int], Floats]
Counts = Mapping[Rows, int]
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
    """As in step.h."""
    return slice(-(-n * worker // WORKERS), -(-n * (worker + 1) // WORKERS))


def number_of(op: Op) -> float:
    """Tells ops apart, alike in a fused and an unfused program."""
    return 1.0 + (op.group + 2 * op.place if isinstance(op, KVWrite) else op.outputs[0].id)


def compute(op: Op, inputs: Sequence[Floats], columns: npt.NDArray[np.int64]) -> Floats:
    """Some function that tells ops, rows and columns apart: element by element, or of whole rows,
    or (matmul, attend and select) of everything there is."""
    total = np.full((1, 1), number_of(op))
    for k, x in enumerate(inputs):
        if isinstance(op, Matmul | Attend | Select):
            part = x.sum(axis=1, keepdims=True).sum(axis=0, keepdims=True)
        elif isinstance(op, Add | Gated | Unary | Prepare):
            part = x * C
        else:
            part = x.sum(axis=1, keepdims=True)
        total = total + (k + 2.0) * part / 20.0
    return np.sin(total + 0.7 * columns)  # bounded, and nowhere flat: no difference is lost


@dataclass
class Separate:
    """Every storage has memory of its own."""

    counts: Counts
    memory: dict[int, Floats] = field(default_factory=dict)
    kv: KV = field(default_factory=dict)

    def at(self, value: Value | Prepared) -> Floats:
        storage = value.storage if isinstance(value, Value) else value.id
        offset = value.offset if isinstance(value, Value) else 0
        whole = self.memory.setdefault(storage, np.full((self.counts[value.rows], 3 * C), np.nan))
        return whole[:, offset : offset + value.columns]

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            inputs = [self.at(v) for v in op.inputs]
            if isinstance(op, Attend):
                inputs.append(self.kv.get((op.group, op.place), np.zeros((1, 1))))
            if isinstance(op, KVWrite):
                self.kv[op.group, op.place] = compute(op, inputs, np.zeros(1, np.int64))
            else:
                out = self.at(op.outputs[0])
                out[:] = compute(op, inputs, np.arange(out.shape[1]))


class Planned:
    """The plan's buffers, and how a worker does its share of an op on them (step.h, row_wise.h)."""

    def __init__(self, made: Plan, counts: Counts) -> None:
        self.plan, self.counts = made, counts
        self.buffers = [np.full(size, np.nan) for size in made.buffers]
        self.scratch = [np.full(1 << 14, np.nan) for _ in range(WORKERS)]
        self.kv: KV = {}
        self.one_token = False

    def at(self, value: Value | Prepared, *, copy: int = 0) -> Floats:
        place, n = self.plan.places[value.id], self.counts[value.rows]
        stride = place.stride or value.columns
        rows = self.buffers[place.buffer][copy * stride :][: n * stride].reshape(n, stride)
        return rows[:, place.offset : place.offset + value.columns]

    def run(self, op: Op, worker: int) -> None:
        if not isinstance(op, Matmul | Attend):
            self.run_rows(op, worker)
            return
        copied = self.one_token and isinstance(op, Matmul) and op.x.id in self.plan.copied
        inputs = [self.at(v, copy=worker if copied else 0) for v in op.inputs]
        if isinstance(op, Attend):
            inputs.append(self.kv.get((op.group, op.place), np.zeros((1, 1))))
        for out in op.outputs:
            mine = share(out.columns, worker)
            self.at(out)[:, mine] = compute(op, inputs, np.arange(out.columns))[:, mine]

    def run_rows(self, op: Op, worker: int) -> None:
        count = self.counts[(op.outputs or op.inputs or op.parts[-1].inputs)[0].rows]
        rows, columns, spare, tile_rows = share(count, worker), slice(None), False, 2
        if isinstance(op, RowWise):
            tile_rows = tile_of(op).rows
            if self.one_token and op.one_token is OneToken.COPIES:
                rows, spare = slice(0, count), worker > 0
            elif self.one_token and op.one_token is OneToken.COLUMNS:
                width = op.parts[0].inputs[0].columns
                blocks = share(-(-width // 32), worker)
                rows, columns = slice(0, count), slice(32 * blocks.start, 32 * blocks.stop)
        for start in range(rows.start, rows.stop, tile_rows):
            tile = slice(start, min(rows.stop, start + tile_rows))
            for part in op.parts:
                self.run_part(op, part, worker, tile, columns, spare)

    def run_part(
        self, op: Op, part: Op, worker: int, rows: slice, columns: slice, spare: bool
    ) -> None:
        tile = tile_of(op) if isinstance(op, RowWise) else None

        def memory(v: Value | Prepared) -> Floats:
            if isinstance(v, Prepared):
                copies = self.one_token and v.id in self.plan.copied
                return self.at(v, copy=worker if copies else 0)[rows, columns]
            places = {} if tile is None else {**tile.local, **(tile.spare if spare else {})}
            if v.storage not in places:
                return self.at(v)[rows, columns]
            at, stride = places[v.storage]
            n = rows.stop - rows.start
            mine = self.scratch[worker][at : at + n * stride].reshape(n, stride)
            if columns.start is not None:
                return mine[:, : min(columns.stop, v.columns) - columns.start]
            return mine[:, v.offset : v.offset + v.columns]

        everywhere = isinstance(part, Select)
        inputs = [self.at(v) if everywhere else memory(v) for v in part.inputs]
        if isinstance(part, KVWrite):
            whole = self.kv.setdefault(
                (part.group, part.place), np.full((self.counts[Rows.TOKENS], 1), np.nan)
            )
            whole[rows] = compute(part, inputs, np.zeros(1, np.int64))
            return
        out = part.outputs[0]
        memory(out)[:] = compute(part, inputs, np.arange(out.columns)[columns])

    def race(self, ops: Sequence[Op], meet: Sequence[Meet], random: np.random.Generator) -> None:
        """Workers at speeds of their own, except that nobody passes a barrier alone."""
        mode = Meet.ONE_TOKEN if self.one_token else Meet.SEVERAL_TOKENS
        start = 0
        for end in (*(i for i, when in enumerate(meet) if when & mode and i), len(ops)):
            at = [start] * WORKERS
            while min(at) < end:
                worker = int(random.choice([w for w in range(WORKERS) if at[w] < end]))
                for _ in range(int(random.integers(1, 6))):
                    if at[worker] < end:
                        self.run(ops[at[worker]], worker)
                        at[worker] += 1
            start = end


def size(value: Value | Prepared) -> int:
    if isinstance(value, Prepared):
        return max(SEVERAL[value.rows], WORKERS) * value.columns
    stride = max(row_stride(value, output=False), row_stride(value, output=True))
    return SEVERAL[value.rows] * stride


def check(
    fused: Recording,
    unfused: Recording,
    counts: Counts,
    random: np.random.Generator,
    *,
    keep: bool,
) -> Plan:
    made = plan(fused, size, keep=keep)
    separate, planned = Separate(counts), Planned(made, counts)
    # the step, then the prompt rows twice: they must not eat what they read
    for segment in (0, 1, 1):
        separate.run(unfused.segments[segment])
        planned.one_token = counts is ONE and segment == 0
        planned.race(fused.segments[segment], made.barriers[segment], random)
        for outputs in fused.outputs[: segment + 1]:
            for value in outputs.values():
                expected = separate.at(value)
                assert np.isfinite(expected).all()
                assert np.array_equal(planned.at(value), expected)
    if keep:
        for op in fused.ops():
            for v in op.outputs:
                if v.id not in made.copied:
                    assert np.array_equal(planned.at(v), separate.at(v))
    return made


choices = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=25
)


def kind_of(name: str) -> ActivationKind:
    return ActivationKind.INT8 if name == "wide" else ActivationKind.F32


@settings(max_examples=300, deadline=None)
@given(choices, st.integers(0, 1 << 30), st.booleans(), st.booleans(), st.booleans())
def test_fusion_and_planned_memory_change_nothing(
    picks: list[tuple[int, int, int]], seed: int, fusion: bool, keep: bool, one_token: bool
) -> None:
    recording = random_recording(picks)
    check(
        fuse(recording, kind_of, fusion=fusion),
        fuse(recording, kind_of, fusion=False),
        ONE if one_token else SEVERAL,
        np.random.default_rng(seed),
        keep=keep,
    )


def test_copies_of_a_row_are_computed_from_what_was_there() -> None:
    """A sum that is stored and normalised, in a step of one token: every worker computes it, so it
    may not be written over what another has yet to read."""
    r = Recorder(lambda name: SHAPES[name], ())
    x = r.embed("table")
    for _ in range(3):
        x = r.add(r.linear(x, "square"), x)
        x = r.add(r.linear(r.rms_norm(x, "norm", 1e-5), "square"), x)
    r.output("hidden", x)
    r.output("logits", r.linear(r.rows(x, Rows.LOGIT_ROWS), "square"))
    r.next_segment()
    r.output("logits", r.linear(r.rows(x, Rows.PROMPT_ROWS), "square"))
    recording = r.finish()
    fused, unfused = (fuse(recording, kind_of, fusion=fusion) for fusion in (True, False))
    copies = [op for op in fused.ops() if isinstance(op, RowWise) and len(op.out) > 1]
    assert copies
    assert all(op.one_token is OneToken.COPIES for op in copies)
    for seed in range(20):
        check(fused, unfused, ONE, np.random.default_rng(seed), keep=False)


def test_a_real_program_is_small_in_memory_and_shares_its_preparations() -> None:
    recording = fuse(record(small_program()), lambda name: ActivationKind.F32, fusion=False)
    kept = plan(recording, size, keep=True)
    shared = plan(recording, size)
    assert len(shared.buffers) <= 24 < len(kept.buffers) / 3
    # per layer: qkv, o, gate + up, down; and the head, in both segments
    prepared = [op for op in recording.ops() if isinstance(op, Prepare)]
    assert len(prepared) == 3 * 4 + 2
    # row-by-row ops do not wait for each other, nor do independent linears
    several = [bool(when & Meet.SEVERAL_TOKENS) for when in shared.barriers[0]]
    assert sum(several) <= 10 * 3 + 3 < len(recording.segments[0])


def test_fusion_leaves_one_record_between_two_matmuls() -> None:
    recording = fuse(record(small_program()), lambda name: ActivationKind.F32)
    made = plan(recording, size)
    step = recording.segments[0]
    for op, following in pairwise(step):
        if isinstance(op, RowWise) and isinstance(following, RowWise):
            assert op.rows is not following.rows
    # qkv → norm, rope, write → attend → prepare → o → norms → gate, up → gated → down → norms
    one = [bool(when & Meet.ONE_TOKEN) for when in made.barriers[0]]
    assert sum(one) <= 6 * 3 + 3
