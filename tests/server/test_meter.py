"""Metrics' arithmetic against lists of events worked out by hand."""

from __future__ import annotations

import bisect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.params import SamplingParams
from headrace.server.histogram import Histogram, one_two_five
from headrace.server.job import Job
from headrace.server.meter import StepMeter


def job(n: int = 1, *, streams: bool = False, arrived_s: float = 100.0) -> Job:
    return Job([1, 2, 3], SamplingParams(n=n), arrived_s=arrived_s, streams=streams)


def play(meter: StepMeter, now_s: float, *tokens: tuple[Job, int, int]) -> None:
    """One step: (job, sample, tokens) that it gave."""
    meter.begin(now_s)
    for each in tokens:
        meter.tokens(*each)
    meter.end()


def observed(histogram: Histogram) -> dict[float, int]:
    """Upper border of each bucket that is not empty → its own count."""
    bounds = (*histogram.bounds, float("inf"))
    return {b: n for b, n in zip(bounds, histogram.counts, strict=True) if n}


def test_gaps_first_tokens_and_counts_of_a_list_of_steps() -> None:
    meter, stream, whole = StepMeter(), job(streams=True), job(arrived_s=100.3)
    play(meter, 100.5, (stream, 0, 1))  # TTFT 0.5
    play(meter, 100.52, (stream, 0, 1), (whole, 0, 1))  # gap 0.02, TTFT 0.22
    play(meter, 100.53, (whole, 0, 1))  # gap 0.01: the stream was paused
    play(meter, 100.57, (stream, 0, 1), (whole, 0, 1))  # gaps 0.05, 0.04

    assert observed(meter.time_to_first_token) == {0.25: 1, 0.5: 1}
    assert meter.time_to_first_token.total == pytest.approx(0.72)
    gaps = meter.inter_token_latency
    assert gaps.count == 4
    assert gaps.total == pytest.approx(0.02 + 0.01 + 0.05 + 0.04)
    assert meter.num_output_tokens == 6
    assert meter.num_streamed_tokens == 3
    assert meter.num_prompt_tokens == 6


def test_samples_of_one_request_share_one_first_token_time() -> None:
    meter, three = StepMeter(), job(3)
    play(meter, 100.1, (three, 0, 1), (three, 1, 1), (three, 2, 1))
    play(meter, 100.2, (three, 0, 1), (three, 2, 1))
    assert meter.time_to_first_token.count == 1
    assert meter.inter_token_latency.count == 2
    assert meter.num_prompt_tokens == 3


def test_several_tokens_of_one_step_share_its_gap() -> None:
    """Row 76 of the fault list: four tokens each 40 ms are gaps of 10 ms."""
    meter, one = StepMeter(), job()
    play(meter, 100.0, (one, 0, 4))
    play(meter, 100.04, (one, 0, 4))
    play(meter, 100.08, (one, 0, 4))
    gaps = meter.inter_token_latency
    assert gaps.count == 8
    assert gaps.total == pytest.approx(0.08)
    assert set(observed(gaps)) <= {0.01, 0.015}  # 10 ms, give or take a rounding
    assert meter.num_output_tokens == 12


def test_borders_are_inclusive_and_counts_cumulative() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 6):
        histogram.observe(value)
    buckets, total = histogram.snapshot()
    assert buckets == [("1.0", 2.0), ("2.0", 4.0), ("5.0", 5.0), ("+Inf", 6.0)]
    assert total == 15.5


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(1, 5))
def test_a_histogram_is_monotone_and_complete(values: list[float], repeat: int) -> None:
    histogram = Histogram((0.5, 1, 10, 50))
    for value in values:
        histogram.observe(value, repeat)
    buckets, _ = histogram.snapshot()
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == len(values) * repeat == histogram.count
    ordered = sorted(values)
    for border, count in buckets[:-1]:
        assert count == bisect.bisect_right(ordered, float(border)) * repeat


def test_token_count_borders_end_at_the_limit() -> None:
    assert one_two_five(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
    assert one_two_five(1) == (1,)
