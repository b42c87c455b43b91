"""Times of bursts and of one who joins: by hand with clocks of round numbers, and against a
simulation that follows every sequence."""

from __future__ import annotations

import pytest
from asking import ROUND
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.limits.bound import Peaks, bound
from headrace.limits.plan import ask
from headrace.limits.plan.hardware import parse_hardware
from headrace.limits.plan.table import Planner, largest
from headrace.limits.plan.times import (
    BoundClock,
    Load,
    Part,
    Step,
    burst_s,
    burst_step,
    chunks_of,
    joining_s,
    rates_of,
    tpot_s,
)

[HARDWARE, BLANK] = parse_hardware(ROUND, "round").values()


class Steps:
    """Every step takes a second."""

    def seconds(self, step: Step) -> float:
        return 1.0


class Linear:
    """A fixed part, one per token, one per position that is seen."""

    def seconds(self, step: Step) -> float:
        tokens = sum(p.num_new * p.count for p in step)
        seen = sum((p.context - p.num_new / 2) * p.num_new * p.count for p in step)
        return 0.5 + 1e-3 * tokens + 1e-8 * seen


def test_bursts_by_hand() -> None:
    """Prompts of 128 in steps of 512. Four: one step. Eight: four are done after the first step;
    the next has four tokens of theirs and 508 of prompts, so three more are done and the last needs
    four tokens of a third: (4·1 + 3·2 + 1·3) / 8."""
    assert burst_s(Load(4, 1024, 128, None, 512), Steps()) == 1
    assert burst_s(Load(8, 1024, 128, None, 512), Steps()) == 13 / 8
    assert burst_s(Load(1, 4096, 2048, None, 512), Steps()) == 4
    step, taken = burst_step(Load(8, 1024, 128, None, 512), 512)
    assert taken == 508
    assert [(p.num_new, p.context, p.count) for p in step[1:]] == [(128, 128, 3), (124, 124, 1)]
    assert (step[0].num_new, step[0].count) == (1, 4)


def test_joining_by_hand() -> None:
    """With 12 others, 500 of 512 tokens of a step are the prompt's: 1,001 tokens take three."""
    assert joining_s(Load(13, 4096, 1001, None, 512), Steps()) == 3
    assert joining_s(Load(1, 4096, 1024, None, 512), Steps()) == 2
    assert joining_s(Load(1, 1 << 20, 512 * 1000, None, 512), Steps()) == pytest.approx(1000)


def test_a_token_takes_the_mean_over_the_output() -> None:
    load = Load(3, 4096, 1000, 201, 512)
    mean = sum(Linear().seconds((Part(1, 1000 + i, 3),)) for i in range(1, 201)) / 200
    assert tpot_s(load, Linear()) == pytest.approx(mean, rel=1e-6)
    at_the_end = Linear().seconds((Part(1, 4096, 3),))
    assert tpot_s(Load(3, 4096, 1000, None, 512), Linear()) == pytest.approx(at_the_end)


def simulated(load: Load) -> float:
    """Every sequence followed: who is done generates a token a step, the rest of the budget goes to
    prompts in order."""
    clock, time, done, firsts = Linear(), 0.0, [0] * load.concurrency, []
    context = [0] * load.concurrency
    output = load.output or load.context - load.prompt
    while len(firsts) < load.concurrency:
        parts, finished, room = [], [], load.budget
        for i in range(load.concurrency):
            if done[i] == load.prompt and context[i] < load.prompt + output:
                context[i] += 1
                parts.append(Part(1, context[i]))
                room -= 1
        for i in range(load.concurrency):
            taken = min(load.prompt - done[i], max(room, 0))
            if taken:
                done[i] += taken
                context[i] = done[i]
                room -= taken
                parts.append(Part(taken, done[i]))
                if done[i] == load.prompt:
                    finished.append(i)
        time += clock.seconds(parts)
        firsts += [time] * len(finished)
    return sum(firsts) / len(firsts)


@given(
    st.integers(1, 60),
    st.integers(1, 3000),
    st.sampled_from((256, 512, 2048)),
    st.integers(20, 400),
)
@settings(max_examples=25, deadline=None)
def test_bursts_against_a_simulation(n: int, prompt: int, budget: int, output: int) -> None:
    load = Load(n, prompt + output, prompt, output, max(budget, 2 * n))
    assert burst_s(load, Linear()) == pytest.approx(simulated(load), rel=0.06)


def test_the_clock_is_the_bound() -> None:
    planner = Planner(ask("gemma3-1b", hardware=(HARDWARE,)))
    rates, costs = rates_of(HARDWARE, planner.weights), planner.costs(HARDWARE)
    assert rates is not None
    clock = BoundClock(costs, rates)
    for step in ([Part(1, 900, 3)], [Part(700, 700), Part(1, 2000, 2)], [Part(5, 600, 2)]):
        expected = bound(costs.step(chunks_of(step)), rates, Peaks.OWN).bound_s
        assert clock.seconds(step) == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_largest(answer: int, most: int) -> None:
    assert largest(lambda n: n <= answer, most) == min(answer, most)
