"""Priorities: lower goes first, and nobody is overtaken without end."""

from __future__ import annotations

from toy import ToyModel, make_engine, run_all

from headrace.engine.admission import ARRIVALS_PER_PRIORITY, MAX_PRIORITY, rank_of
from headrace.engine.core import Engine
from headrace.engine.params import SamplingParams

SHORT = SamplingParams(max_tokens=2, temperature=0)


def order_of_ends(engine: Engine) -> list[int]:
    return [d.request_id for d in run_all(engine) if d.finish_reason is not None]


def test_lower_is_earlier_and_ties_go_by_arrival() -> None:
    engine = make_engine(ToyModel(), max_num_seqs=1)
    for priority in (0, 3, 0, -2, 3, -2, 0):
        engine.add([1, 2], SHORT, priority=priority)
    assert order_of_ends(engine) == [3, 5, 0, 2, 6, 1, 4]


def test_equal_priorities_are_first_come_first_served() -> None:
    for priority in (0, 7, -7):
        engine = make_engine(ToyModel(), max_num_seqs=1)
        for _ in range(5):
            engine.add([1, 2], SHORT, priority=priority)
        assert order_of_ends(engine) == [0, 1, 2, 3, 4]


def test_a_steady_stream_of_higher_priorities_starves_nobody() -> None:
    engine = make_engine(ToyModel(), max_num_seqs=1)
    engine.add([5], SHORT)  # runs while the others wait
    patient = engine.add([1, 2, 3], SHORT, priority=2)
    arrivals = 0
    while not patient.finished:
        while len(engine.scheduler.waiting) < 3:
            engine.add([1], SHORT)
            arrivals += 1
        engine.step()
        assert arrivals <= 2 * ARRIVALS_PER_PRIORITY + 3
    assert arrivals >= 2 * ARRIVALS_PER_PRIORITY


def test_the_last_in_rank_is_preempted_whenever_it_came() -> None:
    model = ToyModel()
    engine = make_engine(model, num_blocks=[24])
    long = SamplingParams(max_tokens=40, temperature=0)
    low = engine.add(list(range(30)), long, priority=1)
    for _ in range(5):
        engine.step()
    high = engine.add(list(range(31)), long)
    run_all(engine)
    assert low.num_preemptions > 0
    assert high.num_preemptions == 0


def test_samples_stand_where_their_request_stands() -> None:
    engine = make_engine(ToyModel(), max_num_seqs=6)
    low = engine.add([1, 2], SHORT.replace(n=3, max_tokens=9), priority=2)
    high = engine.add([3, 4], SHORT.replace(max_tokens=9))
    engine.step()
    engine.step()
    assert [s.order[0] for s in engine.scheduler.running] == [high.request_id] + [
        low.request_id
    ] * 3
    run_all(engine)


def test_ranks() -> None:
    assert rank_of(5, 0) == 5
    assert rank_of(0, 1) == ARRIVALS_PER_PRIORITY
    assert rank_of(3, 10**30) == rank_of(3, MAX_PRIORITY)
    assert rank_of(3, -(10**30)) == rank_of(3, -MAX_PRIORITY)
