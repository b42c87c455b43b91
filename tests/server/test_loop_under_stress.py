"""The engine's thread and the flows of many clients at once, over a cache of a few blocks.

Clients that read, dawdle, leave and run out of time; requests for several samples, vectors, prompt
logprobs and constrained text; steps that fail and rows that are not finite. Every request ends
once, no block is lost, and each has what it has alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest

from engine.toy import FULL, VOCAB, ToyModel, make_engine, run_all, window_group
from headrace.engine.config import Allocator
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.engine.request import FinishReason
from headrace.engine.sizing import peak_blocks
from headrace.server.flow import Flow
from headrace.server.job import Job
from headrace.server.loop import EngineLoop, StepResults

MAX_LEN = 96
GROUPS = [(FULL,), (FULL, window_group()), (window_group(),)]
LIMIT_S = 300.0


@dataclass
class Rule:
    """A constraint: what may follow depends on every token so far. Ends after `length` tokens;
    fails in the named member once so many are out."""

    length: int
    fails: tuple[str, int] | None
    tokens: list[int] = field(default_factory=list)

    def _maybe_fail(self, member: str) -> None:
        if self.fails == (member, len(self.tokens)):
            raise RuntimeError("planted")

    def mask(self) -> Any:
        self._maybe_fail("mask")
        allowed = [i < VOCAB and (i + sum(self.tokens)) % 3 != 0 for i in range(64)]
        return np.packbits(np.array(allowed), bitorder="little").view("<u4")

    def accept(self, token: int) -> None:
        self._maybe_fail("accept")
        self.tokens.append(token)

    def fork(self) -> Rule:
        return Rule(self.length, self.fails, list(self.tokens))

    @property
    def finished(self) -> bool:
        return len(self.tokens) >= self.length


class Clients:
    """What a door does with the loop's results, and the clients."""

    def __init__(self, engine: Engine, rng: Random) -> None:
        self.loop = EngineLoop(engine, asyncio.get_running_loop(), self._deliver)
        self.loop.start()
        self._rng = rng
        self._flows: dict[Job, Flow] = {}
        self.jobs: list[Job] = []
        self.habits: Counter[str] = Counter()

    def _deliver(self, results: StepResults) -> None:
        awake = {self._flows[job] for job, _ in results.deltas}
        for job, delta in results.deltas:
            self._flows[job].push(job, delta)
        assert not results.failed
        for job in results.finished:
            flow = self._flows.pop(job)
            flow.end_job()
            awake.add(flow)
        for flow in awake:
            flow.wake()

    async def visit(self, jobs: list[Job]) -> None:
        """One client with one HTTP request, of one habit."""
        rng = self._rng
        flow = Flow(self.loop, jobs, max_buffered=rng.choice([1, 1, 2, 4, 64]))
        self.jobs += jobs
        self._flows |= dict.fromkeys(jobs, flow)
        self.loop.submit(jobs)
        habit = rng.choice(["reads", "reads", "dawdles", "leaves", "late"])
        self.habits[habit] += 1
        if habit == "late":
            after_s = rng.choice([0, 0.001, 0.01])
            asyncio.get_running_loop().call_later(after_s, flow.cancel, "its time is over")
        seen: dict[tuple[Job, int], list[int]] = {}
        ended: Counter[tuple[Job, int]] = Counter()
        num_taken = 0
        while not flow.done or flow.waiting:
            for job, delta in await flow.take():
                key = (job, delta.index)
                assert not ended[key], "a delta after the end"
                seen.setdefault(key, []).extend(delta.token_ids)
                ended[key] += delta.finish_reason is not None
            num_taken += 1
            if habit == "dawdles":
                await asyncio.sleep(rng.choice([0, 0.0005, 0.003]))
            elif habit == "leaves" and num_taken > rng.choice([0, 1, 3]):
                flow.cancel("the client left")
        for job in jobs:
            assert job.request is not None
            assert job.request.finished
            for sample in job.request.generations if job.streams else ():
                assert seen[job, sample.index] == sample.token_ids
                assert ended[job, sample.index] == 1


def a_job(rng: Random, number: int) -> tuple[Job, Rule | None]:
    """A request, and the rule that it has to follow."""
    prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 2, 5, 20, 60]))]
    now = time.monotonic()
    if rng.random() < 0.12:
        pooling = PoolingParams(rng.choice(["mean", "last"]), normalize=False)
        return Job(prompt, SamplingParams(max_tokens=0), now, pooling=pooling), None
    rule = None
    if rng.random() < 0.35:
        trouble = (rng.choice(["mask", "accept"]), rng.randrange(5))
        rule = Rule(rng.choice([1, 3, 12, 99]), rng.choice([None, None, trouble]))
    params = SamplingParams(
        max_tokens=rng.choice([1, 9, 30, 36] if rule else [0, 1, 2, 9, 30, 36]),
        temperature=rng.choice([0, 1.0]),
        seed=number,
        n=rng.choice([1, 1, 2, 3]),
        prompt_logprobs=rng.choice([None, None, 2]),
        repetition_penalty=rng.choice([1.0, 1.3]),
        stop=rng.choice([(), ("AB", "C")]),
        ignore_eos=rng.random() < 0.5,
    )
    streams = rng.random() < 0.7
    job = Job(prompt, params, now, streams=streams, priority=rng.choice([0, 0, -2, 3]))
    return job, rule


def small_engine(model: ToyModel, rng: Random) -> Engine:
    """Little more memory than one long request needs."""
    others = [Allocator.CONTIGUOUS, Allocator.GROWING, Allocator.NONE]
    allocator = rng.choice([*[Allocator.PAGED] * 4, *others])
    block_size, slack = rng.choice([1, 3, 4, 16]), rng.choice([0, 0, 1, 4])
    frees = allocator is Allocator.PAGED
    return make_engine(
        model,
        max_model_len=MAX_LEN,
        max_num_seqs=rng.choice([3, 3, 4, 8]),
        budget=rng.choice([8, 16, 17, 64]),
        prefill=rng.choice([None, 1, 5]),
        block_size=block_size,
        num_blocks=[
            peak_blocks(group.window, MAX_LEN, 1, block_size, frees_window=frees) + slack
            for group in model.groups
        ],
        allocator=allocator,
        eos_ids=frozenset({7}),
    )


def result(request: Request) -> Any:
    """What must not depend on others. Of a failed prompt the logprobs end anywhere."""
    samples = [(g.token_ids, g.text, g.finish_reason, g.error) for g in request.generations]
    failed = any(g.error for g in request.generations)
    return samples, None if failed else request.prompt_logprobs


async def play(seed: int, events: Counter[str]) -> None:
    rng = Random(seed)
    model = ToyModel(rng.choice(GROUPS), bad_token=rng.choice([None, 11]))
    engine = small_engine(model, rng)
    clients = Clients(engine, rng)
    rules: dict[Job, Rule | None] = {}
    tasks = []
    for _ in range(rng.choice([6, 15, 30])):
        jobs = []
        for _ in range(rng.choice([1, 1, 3])):
            job, rule = a_job(rng, len(rules))
            rules[job] = rule
            job.constraint = None if rule is None else rule.fork()
            jobs.append(job)
        tasks.append(asyncio.create_task(clients.visit(jobs)))
        if rng.random() < 0.04:
            clients.loop.ask(lambda _: setattr(model, "fail_next", RuntimeError("planted")))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks)
    assert clients.loop.alive
    clients.loop.stop()
    assert engine.manager.available_counts == tuple(p.num_blocks for p in engine.manager.pools)
    engine.check_invariants()
    assert not engine.requests()
    events += clients.habits
    events["preempted"] += engine.num_preemptions
    for job in clients.jobs:
        events["paused"] += job.request is not None and job.request.paused_s > 0
        events[compare(model, job, rules[job])] += 1


def compare(model: ToyModel, job: Job, rule: Rule | None) -> str:
    """Against the same request alone, with all the memory it could want."""
    found = job.request
    assert found is not None
    alone = make_engine(
        ToyModel(model.groups, bad_token=model.bad_token),
        max_model_len=MAX_LEN,
        eos_ids=frozenset({7}),
    )
    constraint = None if rule is None else rule.fork()
    wanted = alone.add(job.prompt, job.wanted, constraint=constraint)
    run_all(alone)
    if any("planted" in (g.error or "") and "step" in (g.error or "") for g in found.generations):
        return "failed with its step"
    if any(g.finish_reason is FinishReason.ABORT for g in found.generations):
        for sample, whole in zip(found.generations, wanted.generations, strict=False):
            assert whole.token_ids[: len(sample.token_ids)] == sample.token_ids
        return "aborted"
    assert result(found) == result(wanted)
    vector, other = found.output().embedding, wanted.output().embedding
    assert (vector is None) == (other is None)
    if vector is not None and other is not None:
        assert np.allclose(vector, other, atol=1e-6)
    return "whole" if not any(g.error for g in found.generations) else "failed alone"


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_everything_at_once(first: int) -> None:
    events: Counter[str] = Counter()
    for seed in range(first, first + 20):
        asyncio.run(play(seed, events))
    happened = ("preempted", "paused", "whole", "aborted", "failed alone", "failed with its step")
    assert all(events[name] for name in (*happened, "reads", "dawdles", "leaves", "late")), events
