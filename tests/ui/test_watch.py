"""What live pages compute from snapshots, against plain arithmetic; and the feed they come from."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.ui.backend import Backend
from headrace.ui.facts import roof, watch
from headrace.ui.feed import News

BOUNDS = [0.001, 0.01, 0.1]
FIELDS = ("decode_tokens", "prefill_tokens", "seconds", "bounded_seconds", "bound_s", "operations",
          "read_bytes", "written_bytes")  # fmt: skip


def snapshot(time: float, total: int, counts: list[int], uptime: float | None = None) -> Any:
    """One whose counters are all multiples of total."""
    steps: dict[str, Any] = {
        kind: {name: total * weight for weight, name in enumerate(FIELDS, 1)}
        for kind in watch.KINDS
    }
    return {
        "object": "snapshot",
        "time": time,
        "uptime_s": time if uptime is None else uptime,
        "requests": {"running": 3, "waiting": 2, "paused": 1},
        "tokens": {"output": 7 * total},
        "preemptions": 2 * total,
        "steps": steps | {"draft_tokens": 9 * total},
        "kv": [
            {"blocks": 10, "block_bytes": 100, "owned": 5, "shared": 1, "cached": 2},
            {"blocks": 30, "block_bytes": 300, "owned": 3, "shared": 0, "cached": 9},
        ],
        "itl": {"bounds": BOUNDS, "counts": counts},
    }


def test_points_are_differences_over_the_time_between() -> None:
    before, now = snapshot(10.0, 100, [0] * 4), snapshot(10.5, 150, [0] * 4)
    assert watch.load_point(before, now) == [10500.0, 3, 2, 1, 100.0]
    assert watch.load_point(None, now) == [10500.0, 3, 2, 1, None]
    spans = [watch.span_words(seconds) for seconds in (0.5, 39.9, 109.9, 119.6)]
    assert spans == ["last 10 s", "last 30 s", "last 100 s", "last two minutes"]
    # both kinds together, per second: 2 · 50 · weight ÷ 0.5 s
    assert watch.step_point(before, now) == [10500.0, 200.0, 400.0, 900.0]
    # 500 + 900, 100 + 0, 200 + 2,700 of 10,000 bytes
    assert watch.block_point(now) == [10500.0, 14.0, 1.0, 29.0]
    # tokens 50 in 150 s, the bound 250 s of 200 bounded seconds
    reached, allowed = watch.bound_point(before, now)[1:]
    assert reached == round(50 / 150, 1)
    assert allowed == round(50 / 150 / (250 / 200), 1)
    assert watch.roof_point(before, now, "prefill") == (300 / 750, 300 / 200)


def test_nothing_done_breaks_the_line() -> None:
    before, now = snapshot(10.0, 100, [0] * 4), snapshot(10.5, 100, [0] * 4)
    assert watch.bound_point(before, now) == [10500.0, None, None]
    assert watch.roof_point(before, now, "decode") is None
    assert watch.bound_share(before, now, "decode") is None


def test_a_window_forgets_after_two_minutes() -> None:
    window = watch.Window()
    for second in range(300):
        window.add(snapshot(float(second), second, [second, 2 * second, 0, 0]))
    assert window.seconds == 120.0
    assert window.change("tokens", "output") == 7 * 120
    assert window.counts("itl") == [120, 240, 0, 0]
    assert window.share(("steps", "draft_tokens"), ("tokens", "output")) == 9 / 7
    window.clear()
    assert window.counts("itl") == []


@given(st.lists(st.floats(1e-4, 1.0), min_size=1), st.floats(0.01, 0.99))
def test_a_quantile_is_the_border_above_the_sample_one(values: list[float], share: float) -> None:
    counts = np.histogram(values, [0.0, *BOUNDS, np.inf])[0].tolist()
    ordered = sorted(values)
    exact = ordered[max(int(np.ceil(share * len(values))) - 1, 0)]
    above = [border for border in BOUNDS if border > exact]
    said = watch.quantile(BOUNDS, counts, share)
    assert said == (f"≤ {watch.seconds(above[0])}" if above else f"> {watch.seconds(BOUNDS[-1])}")


def test_ops_lie_on_their_roof() -> None:
    rates = {"read_gb_per_s": 20.0, "int8_gop_per_s": 1000.0, "bf16_gop_per_s": 400.0,
             "f32_gop_per_s": 200.0}  # fmt: skip
    roofs = {series["id"]: series["data"] for series in roof.machine(rates)}
    ops = []
    for unit in roof.UNITS:
        for intensity in (0.5, 7.0, 3000.0):
            operations, peak = 1e9, 1e9 * rates[f"{unit}_gop_per_s"]
            limit = max(operations / intensity / 20e9, operations / peak)
            ops.append({"name": unit, "unit": unit, "operations": operations, "count": 1,
                        "bytes": operations / intensity, "limit_s": limit})  # fmt: skip
    for op, point in zip(ops, roof.ops("decode", ops)["data"], strict=True):
        x, y = point["value"]
        line = roofs[f"roof {op['unit']}"]
        for (x0, y0), (x1, y1) in pairwise(line):
            if x0 <= x <= x1:
                on_line = np.exp(np.interp(np.log(x), np.log([x0, x1]), np.log([y0, y1])))
                assert y == pytest.approx(on_line, rel=1e-3)
    limited = {(row[0], row[1]) for row in roof.op_rows(ops, rates)}
    assert limited == {(unit, by) for unit in roof.UNITS for by in ("memory", unit)}


# ---- the feed -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _server(events: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """Sends these on every GET, slowly, then ends; gives its URL and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):
                for event in events:
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


async def _collect(backend: Backend, until: Any) -> list[News]:
    found: list[News] = []
    async with contextlib.aclosing(backend.feed.follow()) as news:
        async for one in news:
            found.append(one)
            if until(found):
                break
    return found


def test_followers_share_one_reader_and_miss_nothing() -> None:
    events = [snapshot(float(i), i, [0] * 4) for i in range(20)]
    with _server([*events, {"object": "end", "reason": "over"}]) as (url, asked):

        async def run() -> list[list[News]]:
            backend = Backend(url)
            stopped = [_collect(backend, lambda found: found[-1].problem) for _ in range(3)]
            try:
                return await asyncio.gather(*stopped)
            finally:
                await backend.close()

        for found in asyncio.run(run()):
            seen = [one["time"] for news in found for one in news.new]
            assert seen == [float(i) for i in range(20)]
            assert found[-1].problem == "The server has stopped."
        assert asked == ["/events?interval=0.5"]


def test_a_restart_empties_the_past_and_a_stranger_is_one_sentence() -> None:
    old = [snapshot(float(i), i, [0] * 4) for i in range(3)]
    new = [snapshot(10.0 + i, i, [0] * 4, uptime=float(i)) for i in range(2)]
    with _server([*old, *new, {"object": "snapshot", "odd": 1}]) as (url, _):

        async def run() -> list[News]:
            backend = Backend(url)
            try:
                return await _collect(backend, lambda found: found[-1].problem)
            finally:
                await backend.close()

        found = asyncio.run(run())
    assert [one["time"] for one in found[-1].new or found[-2].new][-1] == 11.0
    assert "form that is not known" in str(found[-1].problem)


def test_the_reader_stops_with_its_last_follower() -> None:
    with _server([snapshot(1.0, 1, [0] * 4)]) as (url, asked):

        async def run() -> None:
            backend = Backend(url)
            await _collect(backend, lambda found: found[-1].new)
            reading = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait(reading, timeout=60) if reading else None
            assert all(task.done() for task in reading)
            await backend.close()

        asyncio.run(run())
        assert len(asked) == 1
