"""Whole answers with the cache and without, run or summed from steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from headrace.bench.measure import GREEDY
from headrace.engine.core import Engine
from headrace.lab.kv_cache.steps import FIT_FROM, Steps, bound_s
from headrace.lab.lab import Lab
from headrace.lab.statistics import (
    Interval,
    median_interval,
    ratio_interval,
)
from headrace.lab.values import Findings, Table
from headrace.limits.bound import bound
from headrace.limits.rates import MachineRates
from headrace.ops.cost import CostModel
from headrace.ops.counts import Chunk

#: Prompt and output of whole answers, with the speed-up that people are told to expect.
ANSWERS = {(256, 128): (5.0, 10.0), (1024, 1024): (20.0, 30.0)}
#: Tokens of an answer that is not run without the cache.
_LONG = 1000
#: Of every answer, in turns: five have a range of 94 %.
_RUNS = 5


def answers_of(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(prompt, output) of the answers that fit."""
    return [(p, n) for p, n in ANSWERS if p + n <= lengths[-1]]


def measure_answers(lab: Lab, engines: Mapping[str, Engine], steps: Steps, found: Findings) -> None:
    """Short answers are run both ways in turns. A long one without the cache would take minutes: it
    is summed from the measured steps, as the short one is, too, to see how good such a sum is."""
    rows: list[list[str | float | int | None]] = []
    sums: Interval | None = None
    for prompt, output in answers_of(steps.lengths):
        ids, how = lab.english(prompt), "summed from its steps"
        cached, anew = list[float](), list[float]()
        summed = median_interval(_summed(steps, prompt, output))
        for number in range(_RUNS):
            lab.tell(f"answer of {prompt} + {output}, run {number + 1}")
            seconds, text = _answer(engines["cached"], ids, output)
            cached.append(seconds)
            if prompt + output < _LONG:
                seconds, other = _answer(engines["no cache"], ids, output)
                assert other == text, "the paths part after the check has passed"
                anew.append(seconds)
        slow = summed
        speed_up = summed.over(median_interval(cached))
        if anew:
            how, slow, speed_up = "run", median_interval(anew), ratio_interval(anew, cached)
            sums = summed.over(slow)
        found.measured[f"speed_up_{prompt}_{output}"] = speed_up
        low, high = ANSWERS[prompt, output]
        rows.append(
            [
                f"{prompt} + {output}",
                round(median_interval(cached).value, 3),
                round(slow.value, 2),
                how,
                *(round(v, 1) for v in speed_up.ends),
                f"{low:.0f}-{high:.0f}",
            ]
        )
        found.conclude(
            f"At {prompt} + {output} tokens the cache made the answer {speed_up:.1f} times as fast"
            f"{'' if anew else _of_what(output, slow, sums)}; people are told "
            f"{low:.0f}-{high:.0f}×.{_compared(steps, speed_up, low, high)}",
            speed_up.low > 1,
        )
    found.tables.append(
        Table(
            "answers",
            [
                "prompt + output",
                "cached s",
                "no cache s",
                "no cache is",
                "speed-up",
                "low",
                "high",
                "people are told",
            ],
            rows,
            f"One sequence, prefill included, model load and warm-up not; medians. low, high: of "
            f"{len(cached)} runs in turns the range; of a sum as far apart as its range and that "
            f"of the runs allow.",
        )
    )


def _of_what(output: int, slow: Interval, sums: Interval | None) -> str:
    """How the uncached time was had, where the answer was not run."""
    told = (
        f"; without it {slow:,.0f} s, not run but summed over {output:,} steps on lines between "
        f"measured ones"
    )
    if sums is None:
        return told
    return f"{told} (such a sum was {sums:.2f} times what the short answer took)"


def _compared(steps: Steps, speed_up: Interval, low: float, high: float) -> str:
    """What decides how much a cache saves: how much more a step of many tokens costs than one of
    one."""
    if speed_up.low <= high and low <= speed_up.high:
        return ""
    at = steps.lengths.index(FIT_FROM) if FIT_FROM in steps.lengths else -1
    ratio = ratio_interval(steps.anew[at], steps.cached[at])
    return (
        f" It is the cost of many positions over that of one: here a step of {steps.lengths[at]} "
        f"tokens takes {ratio:.0f} times as long as a step of one; where that is less, a cache "
        f"saves less."
    )


def _answer(engine: Engine, ids: list[int], output: int) -> tuple[float, list[int]]:
    engine.cache.clear()
    begin = perf_counter()
    request = engine.add(ids, GREEDY.replace(max_tokens=output))
    while engine.has_work:
        engine.step()
    return perf_counter() - begin, list(request.generations[0].token_ids)


def _summed(steps: Steps, prompt: int, output: int) -> list[float]:
    """Seconds of an uncached answer by repetition: steps of histories prompt … prompt + output − 1,
    on straight lines between the measured ones."""
    histories = range(prompt, prompt + output)
    return [
        float(np.interp(histories, steps.lengths, run).sum())
        for run in zip(*steps.anew, strict=True)
    ]


def answer_bound_s(
    costs: CostModel, rates: MachineRates, path: str, prompt: int, output: int
) -> float:
    """Least seconds of an answer: of all its steps."""
    first = bound(costs.step([Chunk(prompt, prompt)]), rates).bound_s
    rest = (bound_s(costs, rates, path, prompt + n) for n in range(1, output))
    return first + sum(rest)
