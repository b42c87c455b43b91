"""kv_write and attend: against float64, against the written arithmetic, and against themselves.

The numeric contract says that a row's bits depend on its own request's tokens alone, not on how
they were cut into steps, where their blocks lie, who shares the batch, the threads or the level.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from attention_emulation import attend_row
from paged import Paged, Sequence, Shape, round_bf16, round_kv, sequence, whole

from headrace.native import _core
from headrace.ops.kv import KVFormat

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
ISAS = _core.available_isas()
U = 2.0**-24
FORMATS = list(KVFormat)

# heads / KV heads as in real models, every kind of head dim, lengths around tiles and segments.
SHAPES = [
    pytest.param(Shape(9, 3, 64), 700, id="smollm"),
    pytest.param(Shape(14, 2, 64), 530, id="qwen-0.5b"),
    pytest.param(Shape(12, 2, 128), 260, id="qwen-1.5b"),
    pytest.param(Shape(4, 1, 256, window=200), 600, id="gemma"),
    pytest.param(Shape(1, 1, 8), 1100, id="tiny"),
    pytest.param(Shape(3, 3, 24, v_dim=40), 300, id="v-dim"),
    pytest.param(Shape(2, 2, 80, soft_cap=5.0), 200, id="soft-cap"),
    pytest.param(Shape(50, 1, 10, window=17), 150, id="fifty-heads"),
    pytest.param(Shape(4, 2, 96, window=1), 140, id="window-1"),
    pytest.param(Shape(6, 2, 16, window=513), 1030, id="window-513"),
    pytest.param(Shape(7, 1, 112), 270, id="seven-heads"),
    pytest.param(Shape(13, 1, 48, soft_cap=30.0), 140, id="thirteen-heads"),
]

# How work is shared depends on requests × KV heads, tiles and threads; see kernels/attention.cpp.
BORDERS = [1, 16, 17, 127, 128, 129, 255, 257, 511, 512, 513, 1025]


def dense(shape: Shape, s: Sequence, rows: npt.NDArray[np.int64] | None = None) -> tuple[F64, F64]:
    """Float64 attention of some rows (default all) on the rounded operands, and a bound on a
    kernel's error."""
    rows = np.arange(len(s)) if rows is None else rows
    n, group = len(rows), shape.heads // shape.kv_heads
    rounds = shape.fmt is KVFormat.BF16
    q = s.q[rows] * np.float32(shape.scale)
    q = (round_bf16(q) if rounds else q).reshape(n, shape.heads, shape.dim).astype(np.float64)
    k = round_kv(s.k, shape.fmt).reshape(-1, shape.kv_heads, shape.dim).astype(np.float64)
    v = round_kv(s.v, shape.fmt).reshape(-1, shape.kv_heads, shape.v_dim).astype(np.float64)
    at = np.arange(len(s))
    sees = at[None] <= rows[:, None]
    if shape.window:
        sees &= at[None] > rows[:, None] - shape.window
    exact, bound = np.empty((n, shape.heads, shape.v_dim)), np.empty((n, shape.heads, shape.v_dim))
    for h in range(shape.heads):
        scores = q[:, h] @ k[:, h // group].T
        size = (np.abs(q[:, h]) @ np.abs(k[:, h // group]).T).max(1, where=sees, initial=0)
        if shape.soft_cap:
            scores = shape.soft_cap * np.tanh(scores / shape.soft_cap)
        scores = np.where(sees, scores, -np.inf)
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        values = v[:, h // group]
        exact[:, h] = p @ values
        # A score's error is at most dim·u·Σ|q k| and moves each probability by that factor; sums
        # over a tile of 128 and a few folds add some 150u; bf16 probabilities add 2⁻⁸ each.
        factor = U * (2 * shape.dim * size + 8 * np.abs(scores).max(1, where=sees, initial=0) + 200)
        bound[:, h] = (factor[:, None] + (2.0**-8 if rounds else 0)) * (p @ np.abs(values))
    return exact.reshape(n, -1), bound.reshape(n, -1)


def assert_same_bits(a: F32, b: F32, what: str) -> None:
    assert np.isfinite(a).all(), what
    differ = np.flatnonzero((a.view(np.uint32) != b.view(np.uint32)).any(axis=-1))
    assert differ.size == 0, f"{what}: {differ.size} of {len(a)} rows differ, first {differ[:3]}"


def with_format(shape: Shape, fmt: KVFormat) -> Shape:
    return Shape(
        shape.heads, shape.kv_heads, shape.dim, shape.v_dim, fmt, shape.window, shape.soft_cap
    )


# ---- against outside arithmetic ---------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
@pytest.mark.parametrize(("shape", "length"), SHAPES)
def test_against_float64(shape: Shape, length: int, fmt: KVFormat) -> None:
    shape = with_format(shape, fmt)
    s = sequence(shape, length, 1)
    exact, bound = dense(shape, s)
    error = np.abs(whole(shape, s).astype(np.float64) - exact)
    worst = float((error / bound).max())
    assert worst <= 1, f"error is {worst:.3g} times its bound"


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
@pytest.mark.parametrize("window", [0, 130, 600])
def test_bits_of_the_written_arithmetic(fmt: KVFormat, window: int) -> None:
    shape = Shape(2, 1, 6, v_dim=4, fmt=fmt, window=window)
    s = sequence(shape, 650, 2)
    out = whole(shape, s).reshape(650, 2, 4)
    k, v = round_kv(s.k, fmt), round_kv(s.v, fmt)
    for position, head in [(0, 0), (1, 1), (31, 0), (128, 1), (255, 0), (300, 1), (649, 0)]:
        q = s.q.reshape(650, 2, 6)[position, head]
        want = attend_row(q, k, v, position, shape.scale, window, fmt)
        np.testing.assert_array_equal(out[position, head].view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
@pytest.mark.parametrize("block_size", [16, 48])
@pytest.mark.parametrize(("dim", "v_dim"), [(10, 6), (16, 48), (64, 16)])
@pytest.mark.parametrize("isa", ISAS)
def test_kv_write_layout(fmt: KVFormat, block_size: int, dim: int, v_dim: int, isa: str) -> None:
    """Neighbours in a run go together, so spans begin and end anywhere in one."""
    shape = Shape(3, 3, dim, v_dim=v_dim, fmt=fmt)
    s = sequence(shape, 70, 3)
    s.k[5, 3] = 1e-42  # subnormal
    s.v[6, 1] = -np.inf
    paged = Paged(shape, [s], block_size)
    for a, b in pairwise([0, 3, 4, 5, 14, 37, 70]):
        paged.step([(a, b)], isa=isa, threads=2)
    kind = {KVFormat.F32: np.uint32}.get(fmt, np.uint16)
    layers = paged.memory.view(kind).reshape(2, paged.num_blocks, -1)
    assert (layers[0] == np.iinfo(kind).max).all()  # the other layer is untouched
    keys, values = np.split(layers[1], [3 * block_size * dim], axis=1)
    keys = keys.reshape(-1, 3, block_size // 16, dim // 2, 16, 2)
    values = values.reshape(-1, 3, block_size // 16, 8, v_dim, 2)
    unused = keys.size + values.size
    for t in range(70):
        block, at = paged.tables[0, t // block_size], t % block_size
        k = keys[block, :, at // 16, :, at % 16].reshape(3, dim)
        v = values[block, :, at // 16, at % 16 // 2, :, at % 2]
        for got, want in ((k, s.k[t].reshape(3, dim)), (v, s.v[t].reshape(3, v_dim))):
            assert_stored(got, want, fmt)
        unused -= k.size + v.size
    ff = np.iinfo(kind).max
    assert np.count_nonzero(keys == ff) + np.count_nonzero(values == ff) == unused


def assert_stored(got: npt.NDArray[np.unsignedinteger], want: F32, fmt: KVFormat) -> None:
    if fmt is KVFormat.F32:
        np.testing.assert_array_equal(got, want.view(np.uint32))
    elif fmt is KVFormat.F16:
        np.testing.assert_array_equal(
            np.ascontiguousarray(got).view(np.float16), want.astype(np.float16)
        )
    else:
        np.testing.assert_array_equal(got, round_bf16(want).view(np.uint32) >> 16)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
def test_kv_write_in_any_order(fmt: KVFormat) -> None:
    """The same memory, whichever tokens stand side by side: backwards, shuffled, with holes."""
    shape = Shape(2, 2, 32, fmt=fmt)
    s = sequence(shape, 64, 5)
    tables = np.arange(64, dtype=np.int32)
    written = []
    for order in (tables, tables[::-1], np.random.default_rng(1).permutation(tables)):
        paged = Paged(shape, [s])
        for part in (order[:29], order[29:31], order[31:]):
            rows = np.sort(part) if order is tables else part
            slots = paged.tables[0, rows // 16] * 16 + rows % 16
            _core.ops.kv_write(paged.kv, 1, s.k[rows], s.v[rows], slots.astype(np.int32))
        written.append(paged.memory.copy())
    np.testing.assert_array_equal(written[0], written[1])
    np.testing.assert_array_equal(written[0], written[2])


def test_rows_without_a_slot_are_not_stored() -> None:
    shape = Shape(1, 1, 8)
    s = sequence(shape, 20, 4)
    paged = Paged(shape, [s])
    before = paged.memory.copy()
    slots = np.full(20, -1, np.int32)
    slots[7] = paged.num_blocks * 16  # outside the memory
    _core.ops.kv_write(paged.kv, 1, s.k, s.v, slots)
    np.testing.assert_array_equal(paged.memory, before)


# ---- against itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
@pytest.mark.parametrize(("shape", "length"), SHAPES)
def test_levels_and_threads(shape: Shape, length: int, fmt: KVFormat) -> None:
    shape = with_format(shape, fmt)
    s = sequence(shape, length, 5)
    want = whole(shape, s)
    for isa in ISAS:
        for threads in (1, 3):
            got = whole(shape, s, isa=isa, threads=threads)
            assert_same_bits(want, got, f"{isa}, {threads} threads")


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize(("shape", "length"), SHAPES)
def test_whole_chunks_and_one_by_one(shape: Shape, length: int, threads: int) -> None:
    """Also: freed blocks are poisoned and marked −1 between the steps of a windowed group."""
    s = sequence(shape, length, 6)
    want = whole(shape, s)
    one = Paged(shape, [s], seed=1)
    rows = [one.step([(t, t + 1)], threads=threads)[0] for t in range(length)]
    assert_same_bits(want, np.concatenate(rows), "one by one")
    assert (one.freed > 0) == (0 < shape.window < length - 16)
    chunks = Paged(shape, [s], block_size=32, seed=2)
    edges = sorted({0, length, *(e for e in (1, 15, 17, 127, 128, 129, 500, 513) if e < length)})
    parts = [chunks.step([(a, b)], threads=threads)[0] for a, b in pairwise(edges)]
    assert_same_bits(want, np.concatenate(parts), "chunks")


@pytest.mark.parametrize("block_size", [16, 32, 48, 64, 256])
@pytest.mark.parametrize(("shape", "length"), SHAPES[:4])
def test_block_size_and_placement(shape: Shape, length: int, block_size: int) -> None:
    s = sequence(shape, length, 7)
    want = whole(shape, s)
    for seed, extra in ((3, 0), (4, 9)):
        paged = Paged(shape, [s], block_size, seed, extra)
        assert_same_bits(want, paged.step([(0, length)])[0], f"blocks of {block_size}")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "length"), SHAPES)
def test_a_row_does_not_know_its_neighbours(shape: Shape, length: int, threads: int) -> None:
    """A ragged batch: a prompt, a late chunk, a single token, an empty span, another prompt."""
    lengths = [length, length // 2, length - 3, 40, 19]
    sequences = [sequence(shape, n, 10 + i) for i, n in enumerate(lengths)]
    alone = [whole(shape, s) for s in sequences]
    paged = Paged(shape, sequences, seed=5)
    starts = [0, lengths[1] // 3, lengths[2] - 1, 40, 0]
    before = [(0, a) for a in starts]
    for part, want in zip(paged.step(before, threads=threads), alone, strict=True):
        if len(part):
            assert_same_bits(part, want[: len(part)], "first step")
    parts = paged.step(list(zip(starts, lengths, strict=True)), threads=threads)
    for part, want, start in zip(parts, alone, starts, strict=True):
        if len(part):
            assert_same_bits(part, want[start:], "second step")


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("shape", [Shape(9, 3, 64), Shape(14, 2, 64), Shape(4, 1, 256, window=512)])
def test_a_last_row_alone(shape: Shape, threads: int) -> None:
    """One token at every border of tiles and segments: whole tasks, or tiles shared and folded."""
    s = sequence(shape, max(BORDERS), 12)
    want = whole(shape, s)
    paged = Paged(shape, [s], seed=3)
    paged.free_before = lambda firsts: None  # type: ignore[method-assign]
    paged.step([(0, len(s))])
    for length in BORDERS:
        for rows in (1, 2, 13):
            a = max(0, length - rows)
            part = paged.step([(a, length)], threads=threads)[0]
            assert_same_bits(want[a:length], part, f"rows {a} … {length - 1}")


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
def test_long_contexts(fmt: KVFormat) -> None:
    """Around 4096 positions: against float64, in chunks, token by token, and next to others."""
    shape = with_format(Shape(3, 1, 64), fmt)
    s = sequence(shape, 4100, 13)
    out = whole(shape, s, threads=2)
    rows = np.array([4094, 4095, 4096, 4099])
    exact, bound = dense(shape, s, rows)
    error = np.abs(out[rows].astype(np.float64) - exact)
    assert (error <= bound).all(), f"error is {(error / bound).max():.3g} times its bound"
    paged = Paged(shape, [s, s], block_size=64, seed=4)
    paged.step([(0, 4095), (0, 1000)], threads=3)
    for a, b in ((4095, 4096), (4096, 4097), (4097, 4100)):
        long, short = paged.step([(a, b), (1000 + a - 4095, 1000 + b - 4095)], threads=2)
        assert_same_bits(out[a:b], long, "the long one")
        assert_same_bits(out[1000 + a - 4095 : 1000 + b - 4095], short, "the short one")


# ---- what must never be read ------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.value)
@pytest.mark.parametrize("window", [0, 21, 150])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_other_positions_may_hold_anything(fmt: KVFormat, window: int, bad: float) -> None:
    """Keys and values of later positions, and of those before the window, do not matter."""
    shape = Shape(3, 1, 16, fmt=fmt, window=window)
    s = sequence(shape, 290, 8)
    want = whole(shape, s)
    for position in (0, 6, 127, 128, 201, 288):
        changed = sequence(shape, 290, 8)
        changed.k[position + 1 :] = changed.v[position + 1 :] = bad
        first = max(0, position - window + 1) if window else 0
        changed.k[:first] = changed.v[:first] = bad
        row = whole(shape, changed)[position]
        assert_same_bits(want[position][None], row[None], f"position {position}")


def test_a_bad_key_or_value_makes_its_own_rows_nan() -> None:
    shape = Shape(2, 1, 8)
    for name in ("k", "v"):
        s = sequence(shape, 200, 9)
        getattr(s, name)[150, 3] = np.nan
        out = whole(shape, s)
        assert np.isfinite(out[:150]).all()
        if name == "k":
            assert np.isnan(out[150:]).all()
        else:
            assert np.isnan(out[150:].reshape(-1, 2, 8)[..., 3]).all()


def test_a_missing_block_gives_nan_and_no_stray_read() -> None:
    shape = Shape(2, 1, 8)
    s = sequence(shape, 100, 9)
    for wrong in (-1, 10**6):
        paged = Paged(shape, [s])
        paged.step([(0, 99)])
        paged.tables[0, 2] = wrong  # positions 32 … 47
        assert np.isnan(paged.step([(99, 100)])[0]).all()
        paged.tables = np.ascontiguousarray(paged.tables[:, :3])  # the row's own column is missing
        paged.tables[0, 2] = 0


def test_extreme_scores() -> None:
    """Scores far apart give exact weights of 0 and 1; infinite ones give NaN, never a crash."""
    shape = Shape(1, 1, 2, fmt=KVFormat.F32)
    n = 200
    ones = np.ones((n, 2), np.float32)
    v = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    k = ones.copy()
    k[60] = 1e4
    out = whole(shape, Sequence(ones, k, v))
    np.testing.assert_array_equal(out[60:], np.broadcast_to(v[60], (n - 60, 2)))
    k[:] = 3e38
    assert np.isnan(whole(shape, Sequence(ones * 3, k, v))).all()
    k[:] = -3e38
    assert np.isnan(whole(shape, Sequence(ones * 3, k, v))).all()


def test_bad_arguments_are_named() -> None:
    shape = Shape(2, 1, 8)
    s = sequence(shape, 20, 1)
    paged = Paged(shape, [s])
    at = np.arange(20, dtype=np.int32)
    spans = np.array([0, 20], np.int32)

    def attend(**changes: object) -> None:
        arguments: dict[str, object] = {
            "kv": paged.kv,
            "layer": 0,
            "q": s.q,
            "positions": at,
            "spans": spans,
            "block_tables": paged.tables,
            "heads": 2,
            "scale": 1.0,
        }
        _core.ops.attend(**(arguments | changes))

    for changes, message in (
        ({"layer": 2}, "layer is out of range"),
        ({"heads": 0}, "heads is not a multiple"),
        ({"heads": 3}, "q does not have"),
        ({"positions": at - 1}, "a position is negative"),
        ({"spans": np.array([0, 19], np.int32)}, "spans do not cover"),
        ({"window": -1}, "window is negative"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(**changes)
    with pytest.raises(ValueError, match="multiple of 16"):
        _core.ops.KV(paged.memory, 1, 1, 1, 8, 1, 8, 8)
    with pytest.raises(ValueError, match="memory does not have"):
        _core.ops.KV(paged.memory[:-2], 1, 2, paged.num_blocks, 16, 1, 8, 8)
    with pytest.raises(ValueError, match="memory does not have"):
        _core.ops.KV(paged.memory, 1, 2**60, 2**60, 16, 2**60, 8, 8)
