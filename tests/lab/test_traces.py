"""Traces: the steps that `serve` counts are those that a real engine takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.admission import Vocabulary
from headrace.engine.config import EngineOptions, Machine, resolve
from headrace.engine.core import Engine
from headrace.lab.parts.random_model import random_model
from headrace.lab.parts.served import serve_backlog
from headrace.lab.parts.traces import (
    Job,
    Lengths,
    heavy_tailed,
    mean_over_longest,
    serve,
    utilisation,
)
from headrace.ops.native import NativeModel

JOBS = st.lists(st.builds(Job, st.integers(1, 20), st.integers(1, 12)), min_size=1, max_size=9)


@settings(max_examples=12, deadline=None)
@given(jobs=JOBS, slots=st.integers(1, 4), static=st.booleans())
def test_an_engine_takes_the_steps_that_were_counted(
    jobs: list[Job], slots: int, static: bool
) -> None:
    model = random_model(max_context=64)
    options = EngineOptions(
        max_num_seqs=slots,
        max_num_batched_tokens=256,
        batching="static" if static else "continuous",
        enable_prefix_caching=False,
        num_threads=1,
    )
    config = resolve(options, model.kv_groups, model.max_context, Machine(1 << 30, 1))
    executor = NativeModel(model, max_tokens=256, max_requests=slots, max_context=64, num_threads=1)
    engine = Engine(executor, Vocabulary(num_ids=model.vocab_size), config)
    prompts = [[(7 * i + j) % 128 for j in range(job.num_prompt)] for i, job in enumerate(jobs)]
    served = serve_backlog(engine, prompts, jobs)
    counted = list(serve(jobs, slots, static=static))
    assert [step.num_seqs for step in served.steps] == [len(step) for step in counted]
    tokens = [step.num_decode_tokens + step.num_prefill_tokens for step in served.steps]
    assert tokens == [sum(c.num_new for c in step.values()) for step in counted]
    assert [len(ids) for ids in served.token_ids] == [job.num_output for job in jobs]


@given(jobs=JOBS, slots=st.integers(1, 4), static=st.booleans())
def test_every_position_is_computed_once(jobs: list[Job], slots: int, static: bool) -> None:
    computed = [0] * len(jobs)
    for step in serve(jobs, slots, static=static):
        assert 1 <= len(step) <= slots
        for number, chunk in step.items():
            assert chunk.start == computed[number]
            computed[number] = chunk.context
    assert computed == [job.num_positions for job in jobs]


@given(jobs=JOBS, slots=st.integers(1, 4))
def test_static_utilisation_is_mean_over_longest(jobs: list[Job], slots: int) -> None:
    steps = [len(step) for step in serve(jobs, slots, static=True)]
    assert utilisation(steps, slots) == pytest.approx(mean_over_longest(jobs, slots))
    free = [len(step) for step in serve(jobs, slots, static=False)]
    assert sum(free) == sum(steps)
    assert len(free) <= len(steps)


def test_lengths_are_heavy_tailed_and_bounded() -> None:
    jobs = heavy_tailed(
        np.random.default_rng(0), 4000, Lengths(30, 0.5, 64), Lengths(16, 1.2, 4096)
    )
    outputs = [job.num_output for job in jobs]
    assert {min(outputs), max(job.num_prompt for job in jobs)} == {1, 64}
    assert np.median(outputs) == pytest.approx(16, rel=0.1)
    assert np.mean(outputs) == pytest.approx(16 * np.exp(1.2**2 / 2), rel=0.1)  # the log-normal's
