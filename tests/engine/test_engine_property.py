"""Random arrivals, aborts, forks, turns of a chat, tiny caches and chunk sizes, on every allocator.

Whatever happens to a request, its tokens are those of the toy's oracle, which knows no cache and no
neighbours; block counts agree after every step; everyone ends with one finish reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from speculation.drafters import AnyDrafter
from toy import FULL, VOCAB, ToyModel, expected_tokens, make_engine, run_all, window_group

from headrace.engine.config import Allocator
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams
from headrace.engine.pooling import PoolingParams
from headrace.engine.request import FinishReason
from headrace.engine.scheduler import Batching, Policy
from headrace.engine.sizing import peak_blocks
from headrace.engine.speculation.choice import NO_SPECULATION, Choice, Speculative

MAX_LEN = 64
GROUPS = {
    "full": (FULL,),
    "window": (window_group(),),
    "full+window": (FULL, window_group()),
    "two windows": (window_group(9), window_group(33)),
}


@dataclass
class Run:
    """One random history of an engine."""

    model: ToyModel
    engine: Engine
    requests: list[Request] = field(default_factory=list)
    last_of_session: dict[str, Request] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)
    deltas: list[Any] = field(default_factory=list)

    def add(
        self,
        prompt: list[int],
        params: SamplingParams | PoolingParams,
        session: str | None = None,
        priority: int = 0,
    ) -> None:
        request = self.engine.add(prompt, params, priority=priority)
        self.requests.append(request)
        if session is not None:
            self.last_of_session[session] = request

    def step(self, count: int) -> None:
        """Steps; the paused do not advance, nor do they take a running place."""
        still = {r.request_id: r.num_computed_tokens for r in self.requests if r.paused}
        for _ in range(count):
            deltas = self.engine.step()
            assert not still.keys() & {delta.request_id for delta in deltas}
            self.deltas += deltas
        for request in self.requests:
            if request.request_id in still:
                assert request.paused
                assert request.num_computed_tokens == still[request.request_id]

    def next_turn(self, session: str, cut: int, extra: list[int]) -> list[int]:
        """The session's last text, changed from `cut` on and continued."""
        last = self.last_of_session.get(session)
        if last is None:
            return extra
        history = last.prompt_token_ids + last.generations[0].token_ids
        return (history[: max(len(history) - cut, 0)] + extra)[-(MAX_LEN - 1) :]


tokens = st.integers(0, VOCAB - 1)
prompts = st.lists(tokens, min_size=1, max_size=40)


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 2, 3])),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 5)),
        max_tokens=draw(st.integers(0, 23)),
        ignore_eos=draw(st.booleans()),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 2])),
    )


actions = st.one_of(
    st.tuples(
        st.just("add"),
        prompts,
        params(),
        st.sampled_from([None, None, "a", "b"]),
        st.sampled_from([0, 0, 0, -1, 2]),
    ),
    st.tuples(st.just("turn"), st.sampled_from("ab"), st.integers(0, 12), prompts, params()),
    st.tuples(st.just("embed"), prompts, st.sampled_from(["mean", "last"])),
    st.tuples(st.just("step"), st.integers(1, 9)),
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.just("pause"), st.integers(0, 20)),
    st.tuples(st.just("resume"), st.integers(0, 20)),
)


@st.composite
def engines(
    draw: st.DrawFn, allocators: list[Allocator], speculates: bool = False
) -> tuple[ToyModel, Engine]:
    groups = GROUPS[draw(st.sampled_from(sorted(GROUPS)))]
    allocator = draw(st.sampled_from(allocators))
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    budget = draw(st.sampled_from([3, 4, 7, 16, 17, 64]))
    prefill = draw(st.sampled_from([None, 1, 5]))
    least = [
        peak_blocks(g.window, MAX_LEN, 1, block_size, frees_window=allocator is Allocator.PAGED)
        for g in groups
    ]
    slack = draw(st.sampled_from([0, 1, 5, 100]))
    model = ToyModel(groups)
    choice = NO_SPECULATION
    if speculates:
        choice = Choice(Speculative.DRAFT, draw(st.sampled_from([None, 1, 3, 8, 64])))
    return model, make_engine(
        model,
        max_model_len=MAX_LEN,
        max_num_seqs=3,
        budget=budget,
        prefill=prefill,
        block_size=block_size,
        num_blocks=[n + slack for n in least],
        allocator=allocator,
        batching=draw(st.sampled_from(list(Batching))),
        eos_ids=frozenset(draw(st.sampled_from([[], [7], [1, 2, 3, 4, 5]]))),
        prefix_caching=allocator is Allocator.PAGED and draw(st.sampled_from([True, True, False])),
        schedule_policy=draw(st.sampled_from(list(Policy))),
        speculation=choice,
        draft=AnyDrafter(model, draw(st.integers(0, 99))) if speculates else None,
    )


def play(run: Run, steps: list[tuple[Any, ...]]) -> None:
    for kind, *args in steps:
        if kind == "add":
            prompt, p, *rest = args
            run.add(prompt, p.replace(max_tokens=min(p.max_tokens, MAX_LEN - len(prompt))), *rest)
        elif kind == "turn":
            session, cut, extra, p = args
            prompt = run.next_turn(session, cut, extra)
            run.add(prompt, p.replace(max_tokens=min(p.max_tokens, MAX_LEN - len(prompt))), session)
        elif kind == "embed":
            run.add(args[0], PoolingParams(args[1], normalize=False))
        elif kind == "step":
            run.step(args[0])
        elif run.requests:
            request = run.requests[args[0] % len(run.requests)]
            if kind == "abort":
                run.deltas += run.engine.abort(request)
            elif kind == "pause":
                run.engine.pause(request)
                run.events["paused"] += request.paused
            else:
                run.engine.resume(request)
                assert not request.paused
            run.engine.check_invariants()
    run.deltas += run_all(run.engine)
    for request in run.engine.requests():
        assert request.paused, "it is not done, and no step would do more"
        run.engine.resume(request)
    run.deltas += run_all(run.engine)


def expected_vector(model: ToyModel, request: Request) -> npt.NDArray[np.float64]:
    prompt = request.prompt_token_ids
    rows = [model.hidden(prompt[: i + 1]) for i in range(len(prompt))]
    assert request.pooler is not None
    return np.mean(rows if request.pooler.params.pooling == "mean" else rows[-1:], axis=0)


def check(run: Run) -> None:
    text: Counter[tuple[int, int]] = Counter()
    ends: Counter[tuple[int, int]] = Counter()
    pieces: dict[tuple[int, int], list[int]] = {}
    for delta in run.deltas:
        key = (delta.request_id, delta.index)
        assert ends[key] == 0, "a delta after the end"
        ends[key] += delta.finish_reason is not None
        text[key] += len(delta.text)
        pieces.setdefault(key, []).extend(delta.token_ids)
    for request in run.requests:
        assert request.finished
        for generation in request.generations:
            key = (request.request_id, generation.index)
            assert ends[key] == 1, "one finish reason per sample"
            assert pieces[key] == generation.token_ids
            want = expected_tokens(run.model, request, generation.index, MAX_LEN)
            aborted = generation.finish_reason is not None and (
                generation.finish_reason.value == "abort"
            )
            got = generation.token_ids
            assert (want[: len(got)] if aborted else want) == got
            assert len(generation.text) <= text[key]
        if request.prompt_logprobs is not None and not any(
            g.finish_reason is not None and g.finish_reason.value == "abort"
            for g in request.generations
        ):
            assert len(request.prompt_logprobs) == len(request.prompt_token_ids)
        embedding = request.output().embedding
        if embedding is not None:
            assert np.allclose(embedding, expected_vector(run.model, request), atol=1e-6)
        elif request.pooler is not None:
            assert request.generations[0].finish_reason is FinishReason.ABORT
        run.events["preempted"] += request.num_preemptions
        run.events["cached"] += request.num_cached_tokens
    run.engine.check_invariants()
    run.engine.cache.clear()
    run.engine.check_invariants()
    manager = run.engine.manager
    assert manager.free_counts == tuple(p.num_blocks for p in manager.pools), "a block leaked"
    limit = run.engine.config.max_num_batched_tokens
    assert all(sum(b) <= limit for b in run.model.batches), "token budget exceeded"
    assert all(len(b) <= 3 for b in run.model.batches), "too many sequences in a step"


@settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(engines([Allocator.PAGED]), st.lists(actions, max_size=14))
def test_paged(pair: tuple[ToyModel, Engine], steps: list[tuple[Any, ...]]) -> None:
    run = Run(*pair)
    play(run, steps)
    check(run)


@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    engines([Allocator.CONTIGUOUS, Allocator.GROWING, Allocator.NONE]),
    st.lists(actions, max_size=10),
)
def test_other_allocators(pair: tuple[ToyModel, Engine], steps: list[tuple[Any, ...]]) -> None:
    run = Run(*pair)
    play(run, steps)
    check(run)


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    engines(
        [Allocator.PAGED, Allocator.PAGED, Allocator.CONTIGUOUS, Allocator.GROWING],
        speculates=True,
    ),
    st.lists(actions, max_size=14),
)
def test_no_drafter_changes_a_text(
    pair: tuple[ToyModel, Engine], steps: list[tuple[Any, ...]]
) -> None:
    run = Run(*pair)
    play(run, steps)
    check(run)
    assert run.engine.speculator.num_requests == 0
    assert not run.engine.speculator.trials


@pytest.mark.parametrize("groups", sorted(GROUPS))
def test_the_events_really_happen(groups: str) -> None:
    """The property tests would be empty if tiny pools never preempted and chats never hit."""
    model = ToyModel(GROUPS[groups])
    least = [peak_blocks(g.window, MAX_LEN, 1, 4, frees_window=True) for g in model.groups]
    engine = make_engine(
        model, max_model_len=MAX_LEN, max_num_seqs=3, num_blocks=least, prefix_caching=True
    )
    run = Run(model, engine)
    greedy = SamplingParams(max_tokens=24, temperature=0)
    steps: list[tuple[Any, ...]] = [
        ("add", list(range(30)), greedy, "a"),
        ("step", 200),
        ("turn", "a", 0, [5, 6], greedy.replace(max_tokens=2)),
        ("step", 200),
    ]
    steps += [
        ("add", list(range(i, i + 4)), greedy.replace(max_tokens=40, n=3), None) for i in range(3)
    ]
    steps += [("step", 6), ("pause", 2), ("step", 9), ("resume", 2)]
    play(run, steps)
    check(run)
    assert run.events["preempted"] > 0
    assert run.events["paused"] > 0
    assert run.events["cached"] > 0
    assert model.num_copied > 0
