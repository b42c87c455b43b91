"""paging: what is predicted from lengths alone is what engines hold."""

from __future__ import annotations

import pytest

from headrace.bench.measure import GREEDY
from headrace.engine.config import EngineOptions
from headrace.lab.paging import sharing as beginnings_shared
from headrace.lab.paging.serving import serve_counting
from headrace.lab.paging.sharing import shared_positions
from headrace.lab.paging.strategies import CONTEXT, STRATEGIES, Strategy, useful_share
from headrace.lab.parts.random_model import engine_on, random_model
from headrace.lab.parts.traces import Job

JOBS = [Job(5, 1), Job(16, 40), Job(130, 150), Job(31, 3)]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_an_engine_holds_what_was_predicted(strategy: Strategy) -> None:
    model = random_model(max_context=CONTEXT)
    options = EngineOptions(
        max_model_len=CONTEXT,
        max_num_seqs=1,
        block_size=strategy.block_size,
        kv_allocator=strategy.allocator,
        enable_prefix_caching=False,
        num_threads=1,
    )
    engine = engine_on(model, options)
    position = model.kv_groups[0].bytes_per_position(engine.config.kv_format)
    held = used = 0
    for job in JOBS:
        limit = job.num_output if strategy.told else None
        request = engine.add([1] * job.num_prompt, GREEDY.replace(max_tokens=limit))
        for step in range(job.num_output - 1):
            engine.step()
            usage = engine.kv_usage()
            assert usage.used_bytes == position * (job.num_prompt + step)
            assert usage.held_bytes == position * strategy.held(job, job.num_prompt + step)
            held, used = held + usage.held_bytes, used + usage.used_bytes
        engine.step()
        engine.abort(request)
        assert not engine.has_work
    assert useful_share(JOBS, strategy) == pytest.approx(used / held)


def test_sharing_holds_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings_shared, "SLOTS", 3)
    monkeypatch.setattr(beginnings_shared, "NUM_BEGINNINGS", 2)
    monkeypatch.setattr(beginnings_shared, "BEGINNING", 40)
    model = random_model(max_context=256)
    jobs = [Job(40 + n, m) for n, m in ((3, 9), (20, 4), (1, 30), (9, 2), (60, 17), (2, 1))]
    beginnings = [[1 + i] * 40 for i in range(2)]
    prompts = [
        beginnings[i % 2] + [(i + j) % 50 + 60 for j in range(job.num_prompt - 40)]
        for i, job in enumerate(jobs)
    ]
    held = []
    for sharing in (False, True):
        options = EngineOptions(
            max_num_seqs=3, max_num_batched_tokens=512, enable_prefix_caching=sharing,
            num_threads=1,
        )  # fmt: skip
        engine = engine_on(model, options)
        served = serve_counting(engine, prompts, jobs, [job.num_output for job in jobs])
        position = model.kv_groups[0].bytes_per_position(engine.config.kv_format)
        held.append(sum(served.held) // position)
    assert tuple(held) == shared_positions(jobs)
    assert held[1] < held[0]
