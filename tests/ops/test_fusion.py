"""Fused records give the bits of one kernel per op: every family, level, thread count and shape of
a step, in what a step returns and in what it leaves in the KV cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.native import core
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.ops.program import Program
from headrace.ops.recording import (
    KVWrite,
    OneToken,
    Prepare,
    RmsNorm,
    Rope,
    RowWise,
    Value,
)
from small_program import batch_of, small_program, streams

B = 16
#: Rows of each of three requests, step by step: prompts, single tokens, fewer rows than workers,
#: and single tokens again on what was left behind.
SHAPES = ((37, 0, 0), (1, 0, 0), (1, 5, 0), (1, 1, 0), (0, 0, 19), (1, 1, 1), (0, 0, 1), (7, 2, 3))


def run(program: Program, isa: str, threads: int, fmt: KVFormat, *, fusion: bool) -> list[bytes]:
    """Everything that the steps of SHAPES give and leave behind."""
    native = NativeModel(
        program, max_tokens=64, max_context=128, num_threads=threads, isa=isa, fusion=fusion
    )
    assert (native.num_fused > 0) is fusion
    groups = len(program.kv_groups)
    parts, blocks = streams((60, 60, 60), groups, B, program.vocab_size)
    native.allocate_kv([blocks] * groups, B, fmt)
    seen = []
    for shape in SHAPES:
        rows = [(stream, n) for stream, n in zip(parts, shape, strict=True) if n]
        batch = batch_of(rows, B, prompt=True)
        logits = native.run(batch)
        assert np.isfinite(logits).all()
        seen += [logits.tobytes(), native.hidden.tobytes()]
        seen += [rows.tobytes() for rows in native.prompt_logits(batch)]
    seen += [native._program.kv_bytes(g).tobytes() for g in range(groups)]
    return seen


def compare(program: Program) -> None:
    expected: list[bytes] | None = None
    for isa in core().available_isas():
        for threads in (1, 2, 3):
            for fusion in (False, True):
                seen = run(program, isa, threads, KVFormat.BF16, fusion=fusion)
                expected = expected or seen
                assert seen == expected, (isa, threads, fusion)


def test_a_small_program() -> None:
    compare(small_program())


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", tiny_models.FAMILIES)
def test_families_with_float_weights(name: str, dtype: str, tmp_path: Path) -> None:
    compare(load(open_checkpoint(tiny_models.build(name, tmp_path, dtype=dtype))))


@pytest.mark.torch
def test_int8_activations(tmp_path: Path) -> None:
    path = tiny_models.build("llama-256", tmp_path / "hf")
    compare(load(open_checkpoint(tiny_models.to_gguf(path, tmp_path / "q8.gguf", "Q8_0"))))


def test_what_is_fused_with_what() -> None:
    """Between two matmuls stands one record; keys that only the cache takes are stored nowhere
    else; a normalised row that only matmuls read is local."""
    native = NativeModel(small_program(), max_tokens=4)
    records = [op for op in native.fused.segments[0] if isinstance(op, RowWise)]
    kinds = [[type(part) for part in op.parts] for op in records]
    writing = [op for op in records if any(isinstance(part, KVWrite) for part in op.parts)]
    assert len(writing) == 3
    for op in writing:
        assert op.one_token is OneToken.ROW
        keys = [part.out for part in op.parts if isinstance(part, Rope)][1]
        assert keys.id not in {v.id for v in op.outputs}
    assert [RmsNorm, Prepare] == kinds[0][-2:]
    norms = [
        part.out
        for op in records
        for part, following in zip(op.parts, op.parts[1:], strict=False)
        if isinstance(part, RmsNorm) and isinstance(following, Prepare)
    ]
    assert norms
    stored = {v.id for op in records for v in op.outputs if isinstance(v, Value)}
    assert not stored & {v.id for v in norms}
    # Everything that is recorded is done once: nothing is lost, nothing is repeated.
    parts = [part for op in native.fused.ops() for part in op.parts]
    assert len(parts) == len({id(part) for part in parts})
    unfused = NativeModel(small_program(), max_tokens=4, fusion=False)
    assert parts == list(unfused.fused.ops())
