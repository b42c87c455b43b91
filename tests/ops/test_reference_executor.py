"""ReferenceExecutor (KV in pages) against ReferenceModel (no cache code at all).

Requests advance by random chunks in random company; blocks come from a shuffled pool; blocks that
a window has left behind are marked −1 and handed to whoever asks next.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import tiny_models
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import LoadedModel, load
from headrace.ops.batch import Batch, GroupBatch
from headrace.ops.kv import KVFormat, KVGroupSpec

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

BLOCK = 4


class Pool:
    """A KV group's blocks in random order, and who has which."""

    def __init__(self, spec: KVGroupSpec, num_blocks: int, requests: int, rng: random.Random):
        self.window = spec.window
        self.free = list(range(num_blocks))
        rng.shuffle(self.free)
        self.tables: list[list[int]] = [[] for _ in range(requests)]
        self.first_pos = [0] * requests
        self.num_freed = 0

    def grow(self, request: int, context: int) -> None:
        table = self.tables[request]
        while len(table) * BLOCK < context:
            table.append(self.free.pop(0))

    def leave_behind(self, request: int, computed: int) -> None:
        """Frees blocks whose last position ≤ computed − window."""
        if self.window is None:
            return
        table = self.tables[request]
        for c, block in enumerate(table):
            if block >= 0 and (c + 1) * BLOCK - 1 <= computed - self.window:
                table[c] = -1
                self.free.insert(0, block)  # reused at once
                self.first_pos[request] = (c + 1) * BLOCK
                self.num_freed += 1

    def view(self, chosen: list[tuple[int, int, int]]) -> GroupBatch:
        """chosen: (request, first new position, end)."""
        slots = [
            self.tables[r][p // BLOCK] * BLOCK + p % BLOCK
            for r, begin, end in chosen
            for p in range(begin, end)
        ]
        width = max(len(self.tables[r]) for r, _, _ in chosen)
        rows = [self.tables[r] + [-1] * (width - len(self.tables[r])) for r, _, _ in chosen]
        return GroupBatch(
            slots=_int32(slots),
            block_tables=_int32(rows),
            first_pos=_int32([self.first_pos[r] for r, _, _ in chosen]),
        )


def _int32(values: object) -> npt.NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def run_in_chunks(
    model: LoadedModel, sequences: list[list[int]], fmt: KVFormat, seed: int
) -> tuple[list[list[npt.NDArray[np.float32]]], int]:
    """Logits of every position (half of them as prompt rows), and how many blocks were freed."""
    from headrace.ops.reference import ReferenceExecutor

    rng = random.Random(seed)
    executor = ReferenceExecutor(model, torch.float64)
    assert executor.vocab_size == model.vocab_size
    num_blocks = sum(len(s) // BLOCK + 2 for s in sequences)
    executor.allocate_kv([num_blocks] * len(model.kv_groups), BLOCK, fmt)
    pools = [Pool(spec, num_blocks, len(sequences), rng) for spec in executor.kv_groups]
    computed = [0] * len(sequences)
    logits: list[list[npt.NDArray[np.float32]]] = [[] for _ in sequences]
    while any(c < len(s) for c, s in zip(computed, sequences, strict=True)):
        waiting = [r for r, s in enumerate(sequences) if computed[r] < len(s)]
        chosen = []
        for r in rng.sample(waiting, rng.randint(1, len(waiting))):
            end = min(len(sequences[r]), computed[r] + rng.randint(1, 17))
            chosen.append((r, computed[r], end))
            for pool in pools:
                pool.grow(r, end)
        spans = np.cumsum([0, *(end - begin for _, begin, end in chosen)])
        rows = np.arange(spans[-1])
        batch = Batch(
            tokens=_int32([t for r, begin, end in chosen for t in sequences[r][begin:end]]),
            positions=_int32([[p for _, begin, end in chosen for p in range(begin, end)]]),
            spans=_int32(spans),
            context_lens=_int32([end for _, _, end in chosen]),
            logit_rows=_int32(rows[::2]),
            prompt_rows=_int32(rows[1::2]),
            groups=tuple(pool.view(chosen) for pool in pools),
        )
        found = dict(zip(batch.logit_rows.tolist(), executor.run(batch), strict=True))
        parts = list(executor.prompt_logits(batch, rows_per_call=3))
        assert all(len(p) <= 3 for p in parts)
        prompt = np.concatenate([*parts, np.zeros((0, model.vocab_size), np.float32)])
        found |= dict(zip(batch.prompt_rows.tolist(), prompt, strict=True))
        for i, (r, _, end) in enumerate(chosen):
            logits[r].extend(found[row] for row in range(spans[i], spans[i + 1]))
            computed[r] = end
            for pool in pools:
                pool.leave_behind(r, end)
    return logits, sum(pool.num_freed for pool in pools)


@pytest.mark.parametrize("fmt", [KVFormat.F32, KVFormat.BF16])
@pytest.mark.parametrize("name", [*tiny_models.FAMILIES, "qwen2-window"])
def test_pages_equal_dense_attention(name: str, fmt: KVFormat, tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel

    model = load(open_checkpoint(tiny_models.build(name, tmp_path, seed=4)))
    sequences = [[(11 * i * i + n) % tiny_models.VOCAB for i in range(n)] for n in (75, 40, 9)]
    expected = ReferenceModel(model, torch.float64, fmt).logits(sequences)
    actual, num_freed = run_in_chunks(model, sequences, fmt, seed=5)
    assert (num_freed > 0) == any(spec.window for spec in model.kv_groups)
    for ours, theirs in zip(actual, expected, strict=True):
        # float32 results of float64 arithmetic: half a unit in the last place of the largest.
        bound = float(theirs.abs().max()) * 2.0**-24 + 1e-9
        np.testing.assert_allclose(np.stack(ours), theirs.numpy(), rtol=0, atol=bound)


def test_bf16_rounding_of_keys_and_values_shows(tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceModel

    model = load(open_checkpoint(tiny_models.build("llama", tmp_path)))
    ids = [list(range(50))]
    exact, rounded = (
        ReferenceModel(model, kv_format=f).logits(ids)[0] for f in (None, KVFormat.BF16)
    )
    assert 1e-4 < (exact - rounded).abs().max() < 0.1


def test_copied_blocks_carry_every_layer(tmp_path: Path) -> None:
    from headrace.ops.reference import ReferenceExecutor

    model = load(open_checkpoint(tiny_models.build("llama", tmp_path)))
    executor = ReferenceExecutor(model, torch.float64)
    executor.allocate_kv([3], BLOCK, KVFormat.F32)

    def step(token: int, position: int, block: int) -> npt.NDArray[np.float32]:
        view = GroupBatch(_int32([block * BLOCK + position]), _int32([[block]]), _int32([0]))
        zero = _int32([0])
        return executor.run(
            Batch(
                tokens=_int32([token]),
                positions=_int32([[position]]),
                spans=_int32([0, 1]),
                context_lens=_int32([position + 1]),
                logit_rows=zero,
                prompt_rows=_int32([]),
                groups=(view,),
            )
        ).copy()

    for position, token in enumerate((9, 8)):
        step(token, position, block=2)
    executor.copy_blocks(0, [(2, 0)])
    executor.write_block(0, 1, executor.read_block(0, 2))
    first = step(7, 2, block=2)
    step(200, 2, block=2)  # writing to the original leaves the copies alone
    for copy in (0, 1):
        np.testing.assert_array_equal(step(7, 2, block=copy), first)


def test_a_full_layer_of_a_mixed_model_still_sees_what_the_window_lost(tmp_path: Path) -> None:
    model = load(open_checkpoint(tiny_models.build("gemma3", tmp_path, seed=6)))
    window = next(spec.window for spec in model.kv_groups if spec.window)
    # Through seven layers, windows alone reach less far than this.
    ids = [(13 * i) % tiny_models.VOCAB for i in range(7 * window + 20)]
    other = [*ids[:5], 99, *ids[6:]]
    (ours,), num_freed = run_in_chunks(model, [ids], KVFormat.F32, seed=7)
    (changed,), _ = run_in_chunks(model, [other], KVFormat.F32, seed=8)
    assert num_freed > 0
    assert np.abs(ours[-1] - changed[-1]).max() > 1e-5
