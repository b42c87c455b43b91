"""More context or more requests never take less memory or time: a plan does not fit at one length,
fail at a longer one and fit again."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from asking import ROUND
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.config import EngineOptions, Machine, resolve
from headrace.engine.sizing import peak_blocks
from headrace.limits.plan import ask
from headrace.limits.plan.hardware import parse_hardware
from headrace.limits.plan.resolve import resolve_model
from headrace.limits.plan.table import Planner
from headrace.limits.plan.times import BoundClock, Load, decode_step, joining_s, rates_of

[HARDWARE, BLANK] = parse_hardware(ROUND, "round").values()
MODELS = ("llama-3.1-8b", "gemma3-1b", "gpt2")


@cache
def planner(model: str, quant: str | None, kv: str, formula: str = "program") -> Planner:
    question = ask(model, hardware=(HARDWARE,), quant=quant, kv_cache_dtype=kv, formula=formula)
    return Planner(question)


COUNTS = st.integers(1, 300)


@given(
    model=st.sampled_from(MODELS),
    quant=st.sampled_from((None, "q4_k", "fp8")),
    kv=st.sampled_from(("bf16", "f32", "fp8")),
    formula=st.sampled_from(("program", "paper")),
    context=st.integers(1, 70_000),
    more_context=st.integers(0, 5_000),
    requests=COUNTS,
    more_requests=COUNTS,
)
@settings(max_examples=150, deadline=None)
def test_memory_grows(
    model: str,
    quant: str | None,
    kv: str,
    formula: str,
    context: int,
    more_context: int,
    requests: int,
    more_requests: int,
) -> None:
    found = planner(model, quant, kv, formula)
    small = found.memory(HARDWARE, context, requests)
    large = found.memory(HARDWARE, context + more_context, requests + more_requests)
    assert small.weights == large.weights
    assert small.kv <= large.kv
    assert small.activations <= large.activations
    assert small.overhead <= large.overhead
    assert small.kv > 0


@given(
    model=st.sampled_from(MODELS),
    context=st.integers(1, 8_000),
    more=st.integers(1, 5_000),
    requests=COUNTS,
)
@settings(max_examples=60, deadline=None)
def test_steps_take_longer(model: str, context: int, more: int, requests: int) -> None:
    found = planner(model, None, "bf16")
    rates = rates_of(HARDWARE, found.weights)
    assert rates is not None
    clock = BoundClock(found.costs(HARDWARE), rates)

    def step(n: int, length: int) -> float:
        return clock.seconds(decode_step(Load(n, length, 1, None, 2048)))

    assert step(requests, context) <= step(requests, context + more)
    assert step(requests, context) <= step(requests + more, context)
    short, long = (
        joining_s(Load(requests, 20_000, p, None, 2048), clock) for p in (context, context + more)
    )
    assert short <= long


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gemma3-12b"])
@pytest.mark.parametrize("formula", ["program", "paper"])
def test_one_switch_from_fit_to_not_fit(model: str, formula: str) -> None:
    """1k … 64k in steps of 250: fits, and from one length on not, and there max_context says so."""
    question = ask(model, hardware=(HARDWARE,), quant="q8_0", formula=formula)
    found = Planner(question)
    lengths = range(1_000, 64_001, 250)
    requests = 4 if model == "llama-3.1-8b" else 20
    limit = HARDWARE.memory_bytes or 0
    fits = [found.memory(HARDWARE, n, requests).total <= limit for n in lengths]
    assert fits[0]
    assert not fits[-1]
    assert [a for a, b in pairwise(fits) if a != b] == [True]
    most = found.max_context(HARDWARE, limit, requests)
    assert [n <= most for n in lengths] == fits
    assert found.memory(HARDWARE, most, requests).total <= limit
    assert found.memory(HARDWARE, most + 1, requests).total > limit


def test_one_switch_at_start() -> None:
    """The same of what a server works out at its start, on a machine with 24 GB free."""
    program = resolve_model("llama-3.1-8b").program
    machine = Machine(free_bytes=24_000_000_000, num_cpus=2, packed_dir=Path("packed"))
    weights = 16_060_000_000
    holds = []
    for length in range(1_000, 64_001, 250):
        options = EngineOptions(max_model_len=length, max_num_seqs=4)
        config = resolve(
            options, program.kv_groups, program.max_context, machine, weight_bytes=weights
        )
        [blocks] = config.pools.num_blocks
        one = peak_blocks(None, length, 512, 16, frees_window=True)
        holds.append(blocks >= one)
    assert holds[0]
    assert not holds[-1]
    assert [a for a, b in pairwise(holds) if a != b] == [True]


@pytest.mark.parametrize("model", MODELS)
def test_the_most_that_fits_is_the_most(model: str) -> None:
    found = planner(model, None, "bf16")
    limit, context = HARDWARE.memory_bytes or 0, found.question.context
    most = found.max_concurrency(HARDWARE, limit)
    assert found.memory(HARDWARE, context, most).total <= limit
    assert found.memory(HARDWARE, context, most + 1).total > limit
