"""Hashes of a model's logits: the native arithmetic held still, bit by bit.

One text of listed token ids goes through a native model in chunks of listed lengths (prefill, then
steps of one token); the logits that follow listed positions are hashed. The same ids give the same
hashes on every instruction-set level and thread count, and must after every change of a kernel
(`tests/golden/logit_hashes.json`, written by `tools/record_logit_hashes.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from headrace.ops.batch import Batch, GroupBatch
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.ops.packed import PackedWeights
from headrace.ops.program import Program

#: Prefill in awkward chunks over five tiles and two segments, then four decode steps.
CHUNKS = (257, 128, 1, 199, 15, 1, 1, 1, 1)
#: Block, tile and segment edges, the ends of chunks, and the decode steps.
POSITIONS = (0, 15, 16, 127, 128, 256, 257, 384, 385, 511, 512, 599, 600, 601, 602, 603)
_BLOCK_SIZE = 16


def logit_hashes(
    program: Program,
    ids: Sequence[int],
    kv_format: KVFormat,
    *,
    chunks: Sequence[int] = CHUNKS,
    positions: Sequence[int] = POSITIONS,
    isa: str | None = None,
    num_threads: int | None = None,
    weights: PackedWeights | None = None,
) -> tuple[list[str], PackedWeights]:
    """SHA-256 (hex) of the little-endian float32 logits after each of `positions`, and the packed
    weights for the next call. sum(chunks) = len(ids); positions ascend."""
    assert sum(chunks) == len(ids), "chunks do not cover the ids"
    model = NativeModel(
        program,
        max_tokens=max(chunks),
        max_requests=len(positions),
        max_context=len(ids),
        isa=isa,
        num_threads=num_threads,
        weights=weights,
    )
    num_blocks = -(-len(ids) // _BLOCK_SIZE)
    model.allocate_kv([num_blocks] * len(model.kv_groups), _BLOCK_SIZE, kv_format)
    hashes = []
    start = 0
    for count in chunks:
        end = start + count
        rows = [p - start for p in positions if start <= p < end]
        logits = model.run(_batch(ids, start, end, rows, len(model.kv_groups), num_blocks))
        hashes += [hashlib.sha256(row.astype("<f4").tobytes()).hexdigest() for row in logits]
        start = end
    return hashes, model.weights


def _batch(
    ids: Sequence[int], start: int, end: int, rows: list[int], num_groups: int, num_blocks: int
) -> Batch:
    """Tokens start … end − 1 of one request, whose blocks lie in order."""
    at = np.arange(start, end, dtype=np.int32)
    table = np.arange(num_blocks, dtype=np.int32)[None]
    return Batch(
        tokens=np.array(ids[start:end], np.int32),
        positions=at[None],
        spans=np.array([0, end - start], np.int32),
        context_lens=np.array([end], np.int32),
        logit_rows=np.array(rows, np.int32),
        prompt_rows=np.zeros(0, np.int32),
        groups=(GroupBatch(at, table, np.zeros(1, np.int32)),) * num_groups,
    )
