"""Distributions, targets and flags; numpy is the oracle of the arithmetic."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.serve.metrics import (
    distribution,
    parse_metrics,
    parse_percentiles,
    parse_targets,
    percentile,
    summarise,
)  # fmt: skip
from headrace.bench.serve.timeline import Record, TokenSource
from headrace.errors import UsageError

MS = 1_000_000


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    st.lists(st.floats(0, 100), min_size=1, max_size=4),
)
def test_numpy_agrees(values: list[float], percentiles: list[float]) -> None:
    found = distribution(values, percentiles)
    assert found is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert found.std == pytest.approx(np.std(values), abs=1e-6)
    assert (found.min, found.max) == (min(values), max(values))
    for p, value in found.percentiles:
        assert value == pytest.approx(np.percentile(values, p), rel=1e-9, abs=1e-9)


def test_equal_values_stay_exact() -> None:
    assert percentile([0.1] * 7, 33.3) == 0.1
    assert distribution([], (50,)) is None


def record(
    start_ms: int, arrivals_ms: list[int], *, failure: str | None = None, due_ms: int | None = None,
    prompt: int | None = 10,
) -> Record:  # fmt: skip
    times = array("q", [ms * MS for ms in arrivals_ms])
    return Record(
        index=0,
        scheduled_ns=None if due_ms is None else due_ms * MS,
        start_ns=start_ms * MS,
        end_ns=(arrivals_ms[-1] if arrivals_ms else start_ms + 1) * MS,
        arrivals_ns=times,
        arrival_tokens=(1.0,) * len(times),
        num_output=len(times),
        max_tokens=4,
        num_prompt=10,
        prompt_tokens=prompt,
        cached_tokens=None,
        finish_reason="length",
        token_source=TokenSource.CONTINUOUS,
        done_seen=True,
        failure=failure,
        detail="why",
    )


def test_a_summary_by_hand() -> None:
    records = [
        record(0, [100, 120, 140, 160]),
        record(100, [400, 500, 600, 700]),
        # Fails fast: in no latency, no throughput, no goodput, but in the duration.
        record(200, [201], failure="error_chunk"),
        record(900, [], failure="http_429"),
    ]
    found = summarise(records, (50, 100), {"ttft": 300.0, "tpot": 50.0})
    assert (found.completed, found.failures) == (2, {"error_chunk": 1, "http_429": 1})
    assert found.duration_s == 0.901
    assert found.output_tokens == 8
    assert found.output_tok_per_s == pytest.approx(8 / 0.901)
    assert found.total_tok_per_s == pytest.approx(28 / 0.901)
    assert found.requests_per_s == pytest.approx(2 / 0.901)
    assert (found.good, found.goodput_per_s) == (1, pytest.approx(1 / 0.901))
    assert found.concurrency == pytest.approx((160 + 600 + 1 + 1) / 901)
    assert found.latencies["ttft"].percentiles == ((50, 200.0), (100, 300.0))
    assert found.latencies["tpot"].percentiles == ((50, 60.0), (100, 100.0))
    assert found.latencies["itl"].count == 6
    assert found.latencies["e2el"].mean == 380.0
    assert "ttft_due" not in found.latencies


def test_times_from_due() -> None:
    found = summarise([record(50, [150, 250], due_ms=10, prompt=None)], (50,))
    assert found.latencies["ttft"].mean == 100.0
    assert found.latencies["ttft_due"].mean == 140.0
    assert found.latencies["e2el_due"].mean == 240.0
    assert found.ended_early == 1
    assert found.total_tok_per_s is None
    assert found.goodput_per_s is None


def test_flags() -> None:
    assert parse_targets(["ttft:500", "tpot:50,e2el:1e3"]) == {
        "ttft": 500.0, "tpot": 50.0, "e2el": 1000.0,
    }  # fmt: skip
    assert parse_percentiles("50,99.9,50") == (50.0, 99.9)
    assert parse_metrics("ttft, itl") == ("ttft", "itl")
    for targets in ("ttft", "ttft:", "ttft:0", "ttft:nan", "itl:5", "ttft:-1", ":"):
        with pytest.raises(UsageError, match="--goodput"):
            parse_targets([targets])
    for percentiles in ("", "x", "101", "-1", "nan"):
        with pytest.raises(UsageError, match="--percentiles"):
            parse_percentiles(percentiles)
    with pytest.raises(UsageError, match="--percentile-metrics"):
        parse_metrics("ttft,speed")
