"""Gemma 3: its window layers free blocks, its global layers must not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.formats import sources
from headrace.formats.checkpoint import open_checkpoint
from headrace.models.load import load
from headrace.ops.native import NativeModel
from headrace.verify.probe import run_requests
from headrace.verify.subject import Subject

LENGTH, WINDOW, BLOCK = 1500, 512, 16


@pytest.mark.models
def test_global_layers_see_token_5_of_a_1500_token_prompt() -> None:
    model = load(open_checkpoint(sources.resolve("gemma3-270m")))
    subject = Subject(model, num_ids=model.vocab_size)
    prompt = [(i * i * 31 + 7 * i + 1000) % 40_000 for i in range(LENGTH)]
    native = NativeModel(model, max_tokens=LENGTH, max_requests=8, max_context=LENGTH + 8)
    held: list[list[int]] = []

    def count_blocks(engine: Engine, requests: list[Request]) -> None:
        for sequence in engine.scheduler.running:
            if sequence.blocks is not None:
                groups = range(len(model.kv_groups))
                held.append([sum(b >= 0 for b in sequence.blocks.held(g)) for g in groups])

    def last_row(ids: list[int], chunk: int) -> npt.NDArray[np.float32]:
        engine, probe = subject.engine(
            model=native, max_model_len=LENGTH + 8, max_num_batched_tokens=chunk
        )
        params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        run = run_requests(engine, probe, [ids], params, between=count_blocks)
        return run.rows[0, 0, LENGTH - 1]

    whole = last_row(prompt, LENGTH)
    held.clear()
    chunked = last_row(prompt, 256)
    full, window = np.max(held, axis=0)
    assert full == -(-LENGTH // BLOCK)
    assert window <= -(-(WINDOW - 1 + 256) // BLOCK) + 1
    np.testing.assert_array_equal(chunked, whole)

    changed = last_row([*prompt[:5], 12_345, *prompt[6:]], 256)
    assert np.abs(changed - whole).max() > 1e-3
