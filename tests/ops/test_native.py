"""The native interpreter on a small program: equal bits whatever the batch, chunks, threads, level,
buffers; arguments that do not fit are refused by name. No torch: the oracles are in the tests of
models and in test_native_oracle.py."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from headrace.errors import ModelFileError, UsageError
from headrace.native import _core
from headrace.ops.batch import Batch
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.quant.formats import NumberFormat
from small_program import CONTEXT, VOCAB, WINDOW, Stream, batch_of, small_program, streams

B = 16
FORMATS = (KVFormat.F32, KVFormat.BF16, KVFormat.F16)


def model(fmt: KVFormat = KVFormat.F32, blocks: int = 200, **options: object) -> NativeModel:
    made = NativeModel(small_program(), max_requests=8, **options)  # type: ignore[arg-type]
    made.allocate_kv([blocks, blocks], B, fmt)
    return made


def run_all(
    native: NativeModel, parts: list[Stream], chunks: Callable[[int], int], together: bool
) -> dict[int, npt.NDArray[np.float32]]:
    """Every stream to its end, chunks(step) tokens at a time → stream → logits of all rows."""
    rows: dict[int, list[npt.NDArray[np.float32]]] = {i: [] for i in range(len(parts))}
    step = 0
    while any(s.left for s in parts):
        alive = [i for i, s in enumerate(parts) if s.left]
        chosen = alive if together else alive[:1]
        sizes = [min(parts[i].left, chunks(step + i)) for i in chosen]
        logits = native.run(
            batch_of([(parts[i], n) for i, n in zip(chosen, sizes, strict=True)], B)
        )
        assert np.isfinite(logits).all()
        start = 0
        for i, n in zip(chosen, sizes, strict=True):
            rows[i].append(logits[start : start + n].copy())
            start += n
        step += 1
    return {i: np.concatenate(r) for i, r in rows.items()}


LENGTHS = (300, 1, 17, 145)


def result(
    fmt: KVFormat,
    chunks: Callable[[int], int],
    together: bool,
    seed: int = 0,
    **options: object,
) -> list[bytes]:
    parts, _ = streams(LENGTHS, 2, B, VOCAB)
    if seed:  # the same ids on other blocks
        other, _ = streams(LENGTHS, 2, B, VOCAB, seed)
        parts = [replace(p, blocks=o.blocks) for p, o in zip(parts, other, strict=True)]
    found = run_all(model(fmt, **options), parts, chunks, together)
    return [found[i].tobytes() for i in range(len(parts))]


@pytest.mark.parametrize("fmt", FORMATS)
def test_logits_depend_on_the_tokens_alone(fmt: KVFormat) -> None:
    """Whole = chunked = one by one; alone = batched; blocks shuffled; 1, 2, 3 threads; every level;
    shared = separate buffers. Lengths cross tiles, the window and block edges."""
    whole = result(fmt, lambda _: 512, together=False, num_threads=1)
    assert len(set(whole)) == len(whole)
    assert result(fmt, lambda step: 1 + step * 7 % 30, together=True, num_threads=2) == whole
    assert result(fmt, lambda _: 100, together=True, num_threads=3, seed=5) == whole
    assert result(fmt, lambda _: 64, together=True, num_threads=2, keep=True) == whole
    for isa in _core.available_isas():
        assert result(fmt, lambda _: 33, together=True, num_threads=2, isa=isa) == whole


def test_one_token_at_a_time_gives_the_same_bits() -> None:
    whole = result(KVFormat.BF16, lambda _: 512, together=False)
    assert result(KVFormat.BF16, lambda _: 1, together=True) == whole


def test_prompt_logits_are_the_logits() -> None:
    native = model()
    parts, _ = streams((50, 9), 2, B, VOCAB)
    batch = batch_of([(parts[0], 50), (parts[1], 9)], B, prompt=True)
    logits = native.run(batch).copy()
    for rows_per_call in (1, 8, 64):
        found = [part.copy() for part in native.prompt_logits(batch, rows_per_call)]
        assert [len(f) for f in found][:-1] == [rows_per_call] * (len(found) - 1)
        assert np.concatenate(found).tobytes() == logits.tobytes()
    # and they leave the step's own logits alone
    assert native.run(batch).tobytes() == logits.tobytes()
    with pytest.raises(UsageError, match="more than 64"):
        list(native.prompt_logits(batch_of_rows(batch, 65), 65))


def test_final_hidden_values() -> None:
    """Any rows, in any order, while the step's own logits stay; the same bits a few at a time."""
    native = model()
    parts, _ = streams((50, 9), 2, B, VOCAB)
    batch = batch_of([(parts[0], 50), (parts[1], 9)], B, prompt=True)
    logits = native.run(batch).copy()
    rows = np.array([58, 0, 3, 3, 57, 21, 20, 49], np.int32)
    hidden = native.hidden[rows].astype(np.float64)
    rms = np.sqrt(np.mean(hidden**2, axis=1, keepdims=True) + 1e-5)
    norm = small_program().weights["norm"].data.view(np.float32)
    expected = hidden / rms * norm
    whole = np.concatenate([part.copy() for part in native.final_hidden(batch, rows)])
    assert whole.dtype == np.float32
    assert np.abs(whole - expected).max() <= 4e-7 * np.abs(expected).max()
    list(native.prompt_logits(batch))
    for rows_per_call in (1, 3):
        found = [part.copy() for part in native.final_hidden(batch, rows, rows_per_call)]
        assert np.concatenate(found).tobytes() == whole.tobytes()
    assert native.run(batch).tobytes() == logits.tobytes()
    with pytest.raises(UsageError, match=r"\[1\] = 59"):
        list(native.final_hidden(batch, np.array([0, 59], np.int32)))


def batch_of_rows(batch: Batch, n: int) -> Batch:
    return replace(batch, prompt_rows=np.zeros(n, np.int32))


def test_hidden_is_what_the_step_left() -> None:
    native = model()
    parts, _ = streams((20,), 2, B, VOCAB)
    native.run(batch_of([(parts[0], 20)], B))
    assert native.hidden.shape == (20, 40)
    assert np.isfinite(native.hidden).all()


def test_copied_blocks_hold_the_same_positions() -> None:
    """A fork of a request on copied blocks continues with the same bits."""
    native = model()
    (first,), _ = streams((60,), 2, B, VOCAB)
    fork = Stream(first.ids, tuple(table + 100 for table in first.blocks))
    native.run(batch_of([(first, 37)], B))
    for group in range(2):
        pairs = list(zip(first.blocks[group][:3], fork.blocks[group][:3], strict=True))
        native.copy_blocks(group, [(int(a), int(b)) for a, b in pairs])
    fork.done = first.done
    alone = native.run(batch_of([(first, 23)], B)).tobytes()
    assert native.run(batch_of([(fork, 23)], B)).tobytes() == alone
    with pytest.raises(UsageError, match="block 200 of group 1 is not in 0 … 199"):
        native.copy_blocks(1, [(0, 200)])
    with pytest.raises(UsageError, match="no KV group 2"):
        native.copy_blocks(2, [(0, 1)])


def test_read_blocks_written_elsewhere_hold_the_same_positions() -> None:
    """A request goes on with the same bits on another executor that was given its blocks."""
    native, other = model(), model()
    (first,), _ = streams((60,), 2, B, VOCAB)
    native.run(batch_of([(first, 37)], B))
    assert native.kv_identity == other.kv_identity
    moved = Stream(first.ids, tuple(table + 100 for table in first.blocks), first.done)
    for group in range(2):
        for source, target in zip(first.blocks[group][:3], moved.blocks[group][:3], strict=True):
            other.write_block(group, int(target), native.read_block(group, int(source)).copy())
    alone = native.run(batch_of([(first, 23)], B)).tobytes()
    assert other.run(batch_of([(moved, 23)], B)).tobytes() == alone


@pytest.mark.parametrize(
    ("fmt", "digest"), [(KVFormat.BF16, "a26911cc79d8e754"), (KVFormat.F32, "842b6c6862ab9429")]
)
def test_the_layout_of_stored_blocks(fmt: KVFormat, digest: str) -> None:
    """Saved blocks are read by later versions: who changes these bytes also changes KV_LAYOUT (or
    NUMERICS_ID), and then these hashes."""
    native = NativeModel(small_program(), num_threads=1)
    native.allocate_kv([4, 4], 32, fmt)
    (stream,), _ = streams((64,), 2, 32, VOCAB)
    native.run(batch_of([(Stream(stream.ids, (np.arange(2), np.arange(2))), 64)], 32))
    assert native.kv_identity == "headrace-1/tile128/segment512/layout1"
    data = b"".join(native.read_block(g, b).tobytes() for g in range(2) for b in range(2))
    assert hashlib.sha256(data).hexdigest()[:16] == digest


def test_blocks_behind_the_window_may_be_freed() -> None:
    """−1 in a window group's table where no query looks changes nothing; one more is refused."""
    native = model()
    (stream,), _ = streams((100,), 2, B, VOCAB)
    native.run(batch_of([(stream, 99)], B))
    last = batch_of([(stream, 1)], B)
    expected = native.run(last).tobytes()
    first_seen = (99 - WINDOW + 1) // B
    tables = last.groups[1].block_tables.copy()
    tables[0, :first_seen] = -1
    freed = replace(last, groups=(last.groups[0], replace(last.groups[1], block_tables=tables)))
    assert native.run(freed).tobytes() == expected
    tables = tables.copy()
    tables[0, first_seen] = -1
    wrong = replace(last, groups=(last.groups[0], replace(last.groups[1], block_tables=tables)))
    with pytest.raises(UsageError, match=rf"group 1: block_tables\[0, {first_seen}\] = -1"):
        native.run(wrong)


def changed(name: str, values: object) -> Callable[[Batch], Batch]:
    return lambda batch: replace(batch, **{name: np.array(values, np.int32)})


def group_changed(name: str, values: object) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        group = replace(batch.groups[0], **{name: np.array(values, np.int32)})
        return replace(batch, groups=(group, batch.groups[1]))

    return change


def unaligned(values: np.ndarray) -> np.ndarray:
    """The same int32 numbers at an odd address."""
    return np.frombuffer(b"\0" + values.tobytes(), np.uint8)[1:].view(np.int32)


ABUSE: dict[str, tuple[Callable[[Batch], Batch], str]] = {
    "no tokens": (changed("tokens", []), r"positions: dimension 1 is 4, not 0"),
    "id too large": (changed("tokens", [1, 2, VOCAB, 3]), rf"tokens\[2\] = {VOCAB}"),
    "negative id": (changed("tokens", [1, 2, -1, 3]), r"tokens\[2\] = -1"),
    "float tokens": (lambda b: replace(b, tokens=b.tokens.astype(np.float32)), "tokens is not"),
    "wide tokens": (lambda b: replace(b, tokens=b.tokens.astype(np.int64)), "tokens is not"),
    "list of tokens": (lambda b: replace(b, tokens=[1, 2, 3, 4]), "incompatible"),
    "flat positions": (lambda b: replace(b, positions=b.positions[0]), "positions has 1 dim"),
    "strided": (lambda b: replace(b, tokens=np.zeros(8, np.int32)[::2]), "tokens is not C-cont"),
    "unaligned": (lambda b: replace(b, tokens=unaligned(b.tokens)), "tokens is not aligned"),
    "position too far": (changed("positions", [[0, 1, 2, CONTEXT]]), r"positions\[3\] = 600"),
    "negative position": (changed("positions", [[0, 1, -2, 3]]), r"positions\[2\] = -2"),
    "beyond context": (changed("positions", [[0, 1, 2, 4]]), r"positions\[3\] = 4 is not below"),
    "no context": (changed("context_lens", [0]), r"context_lens\[0\] = 0"),
    "huge context": (changed("context_lens", [CONTEXT + 1]), r"context_lens\[0\] = 601"),
    "spans from 1": (changed("spans", [1, 4]), r"spans\[0\] = 1"),
    "spans too short": (changed("spans", [0, 3]), r"spans\[1\] = 3"),
    "spans too long": (changed("spans", [0, 5]), r"spans\[1\] = 5"),
    "spans of nobody": (changed("spans", [0]), "spans: dimension 0 is 1, not 2"),
    "logit row": (changed("logit_rows", [4]), r"logit_rows\[0\] = 4"),
    "negative row": (changed("logit_rows", [-1]), r"logit_rows\[0\] = -1"),
    "prompt row": (changed("prompt_rows", [0, 9]), r"prompt_rows\[1\] = 9"),
    "slot": (group_changed("slots", [0, 1, 2, 200 * B]), r"group 0: slots\[3\]|slots\[3\] = 3200"),
    "slot -2": (group_changed("slots", [0, -2, 2, 3]), r"slots\[1\] = -2"),
    "slots short": (group_changed("slots", [0, 1, 2]), r"groups\[0\].slots: dimension 0 is 3"),
    "table rows": (group_changed("block_tables", [[0], [1]]), r"block_tables: dimension 0 is 2"),
    "no columns": (group_changed("block_tables", np.zeros((1, 0))), "block_tables has 0 columns"),
    "freed block": (group_changed("block_tables", [[-1]]), r"block_tables\[0, 0\] = -1"),
    "no such block": (group_changed("block_tables", [[200]]), r"block_tables\[0, 0\] = 200"),
    "first_pos": (group_changed("first_pos", [-1]), r"first_pos\[0\] = -1"),
    "one group": (lambda b: replace(b, groups=b.groups[:1]), "number of groups is 1, not 2"),
}


@pytest.mark.parametrize("case", ABUSE)
def test_what_does_not_fit_is_refused_by_name(case: str) -> None:
    native = model()
    change, message = ABUSE[case]
    (stream,), _ = streams((4,), 2, B, VOCAB)
    good = batch_of([(stream, 4)], B)
    before = native.run(good).tobytes()
    with pytest.raises(UsageError, match=message):
        native.run(change(good))
    assert native.run(good).tobytes() == before


def test_a_step_larger_than_allowed_is_refused() -> None:
    native = NativeModel(small_program(), max_tokens=8, max_requests=2)
    native.allocate_kv([20, 20], B, KVFormat.F32)
    parts, _ = streams((9, 1, 1), 2, B, VOCAB)
    with pytest.raises(UsageError, match=r"tokens has 9 rows, not 1 … 8"):
        native.run(batch_of([(parts[0], 9)], B))
    parts, _ = streams((1, 1, 1), 2, B, VOCAB)
    with pytest.raises(UsageError, match=r"3 requests, not 1 … 2"):
        native.run(batch_of([(p, 1) for p in parts], B))


def test_kv_memory_must_be_allocated_and_sane() -> None:
    native = NativeModel(small_program())
    (stream,), _ = streams((4,), 2, B, VOCAB)
    with pytest.raises(UsageError, match="group 0: KV memory is not allocated"):
        native.run(batch_of([(stream, 4)], B))
    for blocks, size, message in (
        ([4], 16, "names 1 groups, the model has 2"),
        ([4, 0], 16, r"num_blocks\[1\] = 0"),
        ([4, 4], 24, "block_size = 24"),
        ([4, 4], 0, "block_size = 0"),
        ([1 << 40, 4], 16, r"num_blocks\[0\]"),
    ):
        with pytest.raises(UsageError, match=message):
            native.allocate_kv(blocks, size, KVFormat.F32)


def test_a_model_the_kernels_cannot_run_says_why() -> None:
    program = small_program()
    tensor = program.weights["1.up"]
    strange = replace(tensor, format=NumberFormat("Q3_X", 99, 1, 4))
    with pytest.raises(ModelFileError, match=r"no kernel for Q3_X \(1.up\)"):
        NativeModel(replace(program, weights={**program.weights, "1.up": strange}))
    order = np.arange(VOCAB, dtype=np.int32)
    moved = replace(program.weights["embed"], row_order=order)
    with pytest.raises(ModelFileError, match="another row order"):
        NativeModel(replace(program, weights={**program.weights, "embed": moved}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "num_threads=0"),
        ({"isa": "mmx"}, "isa='mmx' .* allowed: avx2"),
        ({"max_tokens": 0}, "max_tokens = 0"),
    ],
)
def test_parameters_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NativeModel(small_program(), **options)  # type: ignore[arg-type]


def test_every_op_is_timed_once() -> None:
    native = model()
    (stream,), _ = streams((40,), 2, B, VOCAB)
    assert native.op_seconds() == ()
    native.profile(True)
    native.run(batch_of([(stream, 40)], B))
    timed = native.op_seconds()
    assert [op for op, _ in timed] == list(native.fused.ops())
    step = len(native.fused.segments[0])
    assert all(seconds > 0 for _, seconds in timed[:step])
    native.profile(False)
    assert native.op_seconds() == ()


def test_a_trace_holds_every_op_as_the_model_wrote_it() -> None:
    native = model(keep=True)
    (stream,), _ = streams((30,), 2, B, VOCAB)
    traces = native.trace_step(batch_of([(stream, 30)], B))
    assert [t.op for t in traces] == list(native.recording.segments[0])
    by_output = {t.op.output.id: t.output for t in traces if t.op.output is not None}
    read = 0
    for trace in traces:
        for value, array in zip(trace.op.inputs, trace.inputs, strict=True):
            if value.id in by_output:  # written before, not changed since
                assert np.array_equal(array, by_output[value.id])
                read += 1
    assert read > len(traces) / 2
