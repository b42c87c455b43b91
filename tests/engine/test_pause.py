"""Pause and resume: a request that is not read takes no place, and its text does not change."""

from __future__ import annotations

import time

import pytest
from toy import FULL, ToyModel, expected_tokens, make_engine, run_all, window_group

from headrace.engine.config import Allocator
from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.params import SamplingParams

MAX_LEN = 96
LONG = SamplingParams(max_tokens=30, temperature=0)


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def tokens(request: Request) -> list[list[int]]:
    return [g.token_ids for g in request.generations]


def expected(model: ToyModel, request: Request) -> list[list[int]]:
    return [expected_tokens(model, request, i, MAX_LEN) for i in range(request.params.n)]


@pytest.mark.parametrize("allocator", list(Allocator))
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("when", [0, 1, 3, 9])
def test_the_same_tokens(allocator: Allocator, n: int, when: int) -> None:
    model = ToyModel((FULL, window_group()))
    engine = make_engine(model, budget=8, allocator=allocator)
    request = engine.add(list(range(20)), LONG.replace(n=n, temperature=1, seed=4))
    steps(engine, when)
    engine.pause(request)
    assert request.paused
    assert not engine.has_work
    assert engine.step() == []
    other = engine.add([5, 6, 7], LONG)
    run_all(engine)
    assert other.finished
    assert not request.finished
    engine.resume(request)
    run_all(engine)
    assert tokens(request) == expected(model, request)
    assert request.num_preemptions == 0
    if allocator is Allocator.PAGED:  # its blocks were kept: nothing was computed twice
        assert request.num_computed_tokens == 20 + n * 29


def test_the_place_of_a_paused_request_is_free() -> None:
    engine = make_engine(ToyModel(), max_num_seqs=1)
    first, second = engine.add([1, 2, 3], LONG), engine.add([4, 5], LONG)
    steps(engine, 4)
    assert len(first.generations[0].token_ids) == 4
    assert second.num_computed_tokens == 0
    engine.pause(first)
    steps(engine, 5)
    assert len(second.generations[0].token_ids) == 5
    engine.resume(first)
    steps(engine, 1)
    assert len(first.generations[0].token_ids) == 4, "resumed, it waits for a running place"
    run_all(engine)
    assert first.finished
    assert second.finished


def test_paused_blocks_go_before_anybody_is_preempted() -> None:
    model = ToyModel()
    engine = make_engine(model, num_blocks=[40])  # enough for the second and third, to their ends
    first, second = engine.add(list(range(40)), LONG), engine.add(list(range(50)), LONG)
    steps(engine, 5)
    engine.pause(first)
    third = engine.add(list(range(1, 41)), LONG)
    run_all(engine)
    assert (second.num_preemptions, third.num_preemptions) == (0, 0)
    assert first.num_preemptions == engine.num_preemptions == 1
    assert engine.kv_usage().held_bytes == 0
    engine.resume(first)
    run_all(engine)
    assert tokens(first) == expected(model, first)
    assert first.num_computed_tokens > 40 + 29


def test_paused_blocks_stay_while_others_have_room() -> None:
    engine = make_engine(ToyModel())
    request = engine.add(list(range(40)), LONG)
    steps(engine, 5)
    engine.pause(request)
    held = engine.kv_usage()
    assert held.held_bytes > 0
    engine.add([1], LONG)
    run_all(engine)
    assert engine.kv_usage() == held
    assert engine.abort(request, "The client left.")[0].error == "The client left."
    assert engine.kv_usage().held_bytes == 0
    assert request.output().outputs[0].finish_reason == "abort"


def test_the_account_tells_pauses_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    engine = make_engine(ToyModel())
    never, twice, left = (engine.add([i], LONG) for i in range(3))
    for request, pause_s in ((twice, 2.0), (left, 4.0), (twice, 8.0)):
        engine.pause(request)
        engine.pause(request)
        engine.step()
        now += pause_s
        engine.resume(twice)
        engine.resume(twice)
        now += 1000.0
    engine.abort(left)
    run_all(engine)
    assert [r.metrics().paused_s for r in (never, twice, left)] == [0, 2 + 8, 4 + 1000 + 8 + 1000]
    assert never.metrics().total_s == twice.metrics().total_s == 3014


def test_a_waiting_request_keeps_its_place() -> None:
    engine = make_engine(ToyModel(), max_num_seqs=1)
    running, paused, last = (engine.add([i], LONG) for i in range(3))
    steps(engine, 1)
    engine.pause(paused)
    engine.pause(paused)
    engine.resume(paused)
    engine.resume(paused)
    run_all(engine)
    ends = [r.finished_s for r in (running, paused, last)]
    assert ends == sorted(ends)  # type: ignore[type-var]


def test_a_conversation_survives_a_pause() -> None:
    model = ToyModel()
    engine = make_engine(model, prefix_caching=True)
    first = engine.add(list(range(12)), LONG)
    steps(engine, 5)
    engine.pause(first)
    engine.resume(first)
    run_all(engine)
    turn = first.prompt_token_ids + first.generations[0].token_ids
    second = engine.add([*turn, 3], LONG)
    steps(engine, 2)
    engine.pause(second)
    run_all(engine)
    engine.abort(second)
    assert second.num_cached_tokens == len(turn) - 1
    third = engine.add([*turn, 3, 4], LONG)
    run_all(engine)
    assert third.num_cached_tokens == len(turn) + 1
    assert tokens(third) == expected(model, third)


def test_pausing_what_has_finished_does_nothing() -> None:
    engine = make_engine(ToyModel())
    request = engine.add([1], LONG)
    run_all(engine)
    engine.pause(request)
    assert not request.paused
    engine.resume(request)
    assert not engine.has_work
