"""Planned memory next to what the native interpreter allocates and what a server process takes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.limits.plan import ask, plan
from headrace.limits.plan.memory import MemoryModel, packed_bytes
from headrace.limits.rates import MachineRates
from headrace.limits.synthetic import Shape, synthetic_model
from headrace.ops.kv import KVFormat
from headrace.ops.native import NativeModel
from headrace.quant.formats import FORMATS
from live_server import serving
from small_program import small_program

ODD = Shape(hidden=256, intermediate=768, heads=3, kv_heads=1, head_dim=80, vocab=1003)
ALLOWED = 0.05
RATES = MachineRates(1e11, 1e12, 5e11, 2e11, 2, "avx512", 1 << 25)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_packed_weights_are_planned_to_the_byte(name: str) -> None:
    model = synthetic_model(ODD, FORMATS[name], 1)
    native = NativeModel(model, max_tokens=4, max_requests=2, max_context=64, num_threads=1)
    assert packed_bytes(native.recording, model.weights) == native.weights.num_bytes


def test_buffers_are_planned_as_the_interpreter_cuts_them() -> None:
    """Where every row may give logits, all that it maps but the buffers of segments that only run
    when they are asked for: prompt logits and final hidden values, 64 rows at most."""
    program, tokens = small_program(), 512
    native = NativeModel(program, max_tokens=tokens, max_requests=tokens, num_threads=1)
    mapped = sum(native._lowering.plan.buffers)
    asked_for = (
        64 * 4 * 128 * 4
    )  # rows of at most 128 floats: logits, hidden values, two on the way
    planned = MemoryModel(program, packed=True).plan(
        context=600, concurrency=tokens, kv_format=KVFormat.BF16, step_tokens=tokens
    )
    tables = 600 * 2 * (2 * 4 * 5)  # two rotary tables: cosines and sines of five frequencies
    assert mapped - asked_for <= planned.activations - tables <= mapped


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 1 << 16),
    st.integers(0, 1 << 16),
    st.integers(1, 2000),
    st.integers(0, 2000),
    st.integers(1, 4096),
    st.integers(0, 4096),
)
def test_no_part_shrinks_with_context_concurrency_or_steps(
    context: int, longer: int, requests: int, more: int, step: int, larger: int
) -> None:
    def parts(context: int, concurrency: int, step_tokens: int) -> tuple[int, ...]:
        found = SMALL.plan(
            context=context,
            concurrency=concurrency,
            kv_format=KVFormat.BF16,
            step_tokens=max(step_tokens, concurrency),
        )
        return found.weights, found.kv, found.activations, found.overhead

    before = parts(context, requests, step)
    after = parts(context + longer, requests + more, step + larger)
    assert all(a <= b for a, b in zip(before, after, strict=True))


SMALL = MemoryModel(small_program(), packed=True)


@pytest.mark.models
def test_a_server_filled_to_the_plan_takes_what_was_planned() -> None:
    _fill("smollm2-135m", context=512, requests=4)


@pytest.mark.large
@pytest.mark.parametrize(
    ("model", "context", "requests"),
    [("smollm2-135m", 2048, 16), ("qwen2.5-coder-1.5b", 1024, 4)],
)
def test_larger_servers_filled_to_the_plan_take_what_was_planned(
    model: str, context: int, requests: int
) -> None:
    _fill(model, context=context, requests=requests)


def _fill(name: str, *, context: int, requests: int) -> None:
    """All slots at once, prompts as long as the context allows; the peak over the whole life."""
    question = ask(
        name, hardware="local", context=str(context), concurrency=str(requests), rates=RATES
    )
    planned = plan(question).rows[0].memory
    random = np.random.default_rng(0)
    options = (
        "--max-model-len",
        str(context),
        "--max-num-seqs",
        str(requests),
        "--kv-cache-memory",
        str(planned.kv),
    )
    with serving(name, *options, step_limits=True) as server:

        def ask_one(ids: list[int]) -> int:
            body = {"model": name, "prompt": ids, "max_tokens": 8, "temperature": 0}
            answer = server.json("/v1/completions", body | {"ignore_eos": True})
            return int(answer["usage"]["completion_tokens"])

        prompts = random.integers(1000, 20_000, (requests, context - 8)).tolist()
        with ThreadPoolExecutor(requests) as threads:
            assert list(threads.map(ask_one, prompts)) == [8] * requests
        taken = _anonymous_bytes(server.process.pid)
    code = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as empty:
        assert empty.stdout is not None
        empty.stdout.readline()
        taken -= _anonymous_bytes(empty.pid)
        empty.communicate(b"\n")
    assert planned.total / (1 + ALLOWED) <= taken <= planned.total * (1 + ALLOWED)


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
