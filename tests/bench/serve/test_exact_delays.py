"""A scripted server's delays are reported exactly: the whole load generator on a clock of ours."""

from __future__ import annotations

from typing import Any

import pytest

from bench.serve.virtual import (
    Script,
    delta,
    run_virtual,
    scripted,
    stream,
    text,
    usage_chunk,
)  # fmt: skip
from headrace.bench.serve.jobs import CHAT, COMPLETIONS
from headrace.bench.serve.plan import Data, Load, Wanted
from headrace.bench.serve.result import to_dict
from headrace.bench.serve.run import Outcome, measure
from headrace.bench.serve.target import Target


def run(answer: Any, *, endpoint: str = COMPLETIONS, count: int = 1, **load: Any) -> dict[str, Any]:
    """The report as data."""
    wanted = Wanted(
        Target(False, "scripted", 80),
        Data(count=count),
        Load(**({"num_warmups": 0} | load)),
        endpoint,
        targets={"ttft": 500.0, "tpot": 10.0},
    )

    async def use(client: Any) -> Outcome:
        return await measure(client, wanted, lambda _: None)

    return to_dict(run_virtual(scripted(answer), use), requests=True)


def tokens(count: int, first_s: float, gap_s: float, *, continuous: bool) -> Script:
    """`count` tokens in chunks of one, the finish reason in a chunk of its own beside the last."""
    timed: list[tuple[float, Any]] = [
        (first_s + i * gap_s, text("x", usage=i + 1 if continuous else None)) for i in range(count)
    ]
    last = timed[-1][0]
    finish = text("", "length", count if continuous else None)
    return stream([*timed, (last, finish), (last, usage_chunk(count))])


@pytest.mark.parametrize("continuous", [True, False])
@pytest.mark.parametrize("streams", [1, 32])
def test_half_a_second_then_ten_milliseconds(streams: int, continuous: bool) -> None:
    """Row 74: the first token's time is in no gap."""
    report = run(
        lambda _: tokens(20, 0.5, 0.01, continuous=continuous),
        count=2 * streams,
        max_concurrency=streams,
    )
    assert report["completed"] == 2 * streams
    assert set(report["ttft_ms"].values()) == {2 * streams, 500.0, 0.0}
    for name, count in (("itl_ms", 19), ("gap_ms", 19), ("tpot_ms", 1)):
        assert report[name]["count"] == 2 * streams * count
        assert report[name]["mean"] == report[name]["min"] == report[name]["max"] == 10.0
        assert report[name]["p99"] == 10.0
    assert report["e2el_ms"]["mean"] == 690.0
    assert report["duration_s"] == 2 * 0.69
    assert report["output_tok_per_s"] == pytest.approx(streams * 20 / 0.69, rel=1e-12)
    assert report["concurrency"] == streams
    assert report["good"] == 2 * streams


def test_a_role_is_no_token() -> None:
    """Row 75."""
    report = run(
        lambda _: stream(
            [
                (0.1, delta(role="assistant", content="")),
                (2.0, delta(content="Hi")),
                (2.5, delta("stop")),
                (2.5, usage_chunk(2)),
            ]
        ),
        endpoint=CHAT,
    )
    assert report["ttft_ms"]["mean"] == 2000.0
    # Two tokens: the end of the text is the second, half a second after the first.
    assert report["tpot_ms"]["mean"] == 500.0
    assert report["e2el_ms"]["mean"] == 2500.0


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ],
)
def test_a_token_of_any_kind_is_the_first(fields: dict[str, Any]) -> None:
    report = run(
        lambda _: stream(
            [
                (0.1, delta(role="assistant", content=None)),
                (0.25, delta(**fields)),
                (1.0, delta(content="later")),
                (1.0, delta("stop")),
            ]
        ),
        endpoint=CHAT,
    )
    assert report["ttft_ms"]["mean"] == 250.0


@pytest.mark.parametrize("continuous", [True, False])
def test_four_tokens_in_every_chunk(continuous: bool) -> None:
    """Row 76: per token, not per chunk, and the first chunk is four tokens too."""
    timed: list[tuple[float, Any]] = [
        (0.1 + 0.04 * i, text("four", usage=4 * i + 4 if continuous else None)) for i in range(10)
    ]
    timed += [(timed[-1][0], text("", "length")), (timed[-1][0], usage_chunk(40))]
    report = run(lambda _: stream(timed))
    assert report["output_tokens"] == 40
    assert report["tpot_ms"]["mean"] == 10.0
    assert (report["itl_ms"]["count"], report["itl_ms"]["max"]) == (36, 10.0)
    assert (report["gap_ms"]["count"], report["gap_ms"]["min"]) == (9, 40.0)
    assert report["tokens_per_arrival"] == 4.0


def test_a_hundred_spaces_are_a_hundred_tokens() -> None:
    """Row 77: counted by the server, never by reading the text."""
    timed: list[tuple[float, Any]] = [(0.01 * (i + 1), text(" ")) for i in range(100)]
    timed += [(1.0, text("", "length")), (1.0, usage_chunk(100))]
    report = run(lambda _: stream(timed))
    assert report["output_tokens"] == 100
    assert report["itl_ms"]["count"] == 99


def test_content_beside_the_finish_reason() -> None:
    """Row 59: the last token may come with the reason."""
    for last in ([(0.3, text("b", "length"))], [(0.3, text("b")), (0.3, text("", "length"))]):
        report = run(lambda _, last=last: stream([(0.1, text("a")), *last, (0.3, usage_chunk(2))]))
        assert report["itl_ms"]["mean"] == pytest.approx(200.0, rel=1e-12)
        assert report["e2el_ms"]["mean"] == 300.0
        assert report["output_tokens"] == 2


def test_usage_with_empty_choices() -> None:
    """Row 78: no token, and no crash; the answer had ended before."""
    report = run(lambda _: stream([(0.1, text("a", "stop")), (5.0, usage_chunk(1))]))
    assert report["e2el_ms"]["mean"] == 100.0
    assert report["prompt_tokens"] == 8
    assert "tpot_ms" not in report  # one token has no time between tokens


def test_a_stream_without_a_reason_has_failed() -> None:
    """Row 82: an end that nobody explains is no fast answer."""
    report = run(
        lambda i: stream([(0.1, text("a")), (0.2, text("b"))] if i % 2 else
                         [(0.5, text("a", "stop")), (0.5, usage_chunk(1))]),
        count=4, max_concurrency=1,
    )  # fmt: skip
    assert report["failures"] == {"no_finish_reason": 2}
    assert report["completed"] == 2
    assert report["ttft_ms"]["mean"] == 500.0
    assert report["finish_reasons"] == {"stop": 2}
    # An end of text before the wanted length is visible as well.
    assert report["ended_early"] == 2


def test_the_report_states_its_conditions() -> None:
    """Row 81: boundary, counts asked for and got, warm-up, cache."""
    cached = usage_chunk(2, prompt=128)
    cached["usage"]["prompt_tokens_details"] = {"cached_tokens": 32}
    report = run(
        lambda _: stream([(0.1, text("a")), (0.2, text("b", "length")), (0.2, cached)]),
        count=3, num_warmups=2, max_concurrency=1,
    )  # fmt: skip
    conditions = report["conditions"]
    assert "before a request is written" in conditions["boundary"]
    assert (conditions["warm_up_requests"], conditions["warm_up_included"]) == (2, False)
    assert "96 of 384 prompt tokens came from the server's cache" in conditions["cache_state"]
    assert (report["prompt_asked"], report["prompt_got"]) == ((128, 128), (128, 128))
    assert (report["output_asked"], report["output_got"]) == ((64, 64), (2, 2))
    assert len(report["requests"]) == 3


def test_an_open_loop_does_not_wait_for_a_slow_server() -> None:
    """A server that stalls for a second delays no request; one that is full shows in the time from
    due."""

    def answer(index: int) -> Script:
        return stream([(1.0 if index == 0 else 0.1, text("a", "stop"))])

    report = run(answer, count=50, request_rate=20.0)
    assert report["completed"] == 50
    # The test's clock has microseconds, and arrivals are drawn in nanoseconds.
    assert report["overhead"]["send_delay_ms"]["max"] < 0.001
    assert report["ttft_ms"]["max"] == pytest.approx(1000.0, abs=0.001)
    due = [r["due_ms"] for r in report["requests"]]
    assert due == sorted(due)
    assert due == pytest.approx([r["start_ms"] for r in report["requests"]], abs=0.001)

    queued = run(answer, count=50, request_rate=20.0, max_concurrency=1)
    assert queued["ttft_ms"]["p90"] == pytest.approx(100.0)
    assert queued["ttft_due_ms"]["max"] > 1900.0
    assert queued["overhead"]["send_delay_ms"]["max"] > 1900.0
    assert any("after they were due" in warning for warning in queued["warnings"])
