"""The limits page in a real browser: what it shows is what /limits and /events say."""

from __future__ import annotations

from itertools import pairwise

import pytest
from browser import Browser
from selenium.webdriver.common.keys import Keys
from watching import Snapshots, chart, generate, rows

from headrace.ui.facts import roof, watch
from live_server import LiveServer

pytestmark = pytest.mark.ui


def _data(browser: Browser, name: str) -> list[list[float]]:
    found = chart(browser, "Roofline", f"o.series.find((s) => s.id === '{name}').data")
    return [point["value"] if isinstance(point, dict) else point for point in found or ()]


def test_roofs_ops_and_steps(browser: Browser, dashboard: str, server: LiveServer) -> None:
    generate(server, 2, 8)
    snapshots = Snapshots(server)
    browser.open(f"{dashboard}limits")
    browser.wait(lambda: _data(browser, "ops decode"), "the ops")
    truth = server.json("/limits?batch=1&context=512&prompt=128")
    rates = truth["machine"]
    for unit in roof.UNITS:
        peak, bandwidth = rates[f"{unit}_gop_per_s"], rates["read_gb_per_s"]
        assert _data(browser, f"roof {unit}")[1] == pytest.approx([peak / bandwidth, peak])
    for kind in ("decode", "prefill"):
        ops = [op for op in truth[kind]["ops"] if op["bytes"] and op["operations"]]
        expected = [[op["operations"] / op["bytes"], op["operations"] / op["limit_s"] / 1e9]
                    for op in ops]  # fmt: skip
        assert _data(browser, f"ops {kind}") == [pytest.approx(p, rel=1e-3) for p in expected]
        assert f"at best {watch.seconds(truth[kind]['bound_s'])}" in browser.text()

    with snapshots.recording():
        generate(server, 4, 400)
        assert server.idle()
        browser.wait(lambda: len(_data(browser, "steps decode")) > 2, "live steps")
    points = _data(browser, "steps decode")
    times = [row[0] for row in chart(browser, "Against the bound", "o.dataset[0].source")]
    common = 0
    for before, now in pairwise(times):
        if before in snapshots.by_time and now in snapshots.by_time:
            one, two = snapshots.by_time[before], snapshots.by_time[now]
            point = watch.roof_point(one, two, "decode")
            if point is not None:
                assert pytest.approx([point[0], point[1] / 1e9], rel=1e-3) in points
                common += 1
    assert common >= 1
    browser.shoot_all("limits")


def test_a_slider_asks_for_another_step(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    browser.open(f"{dashboard}limits")
    browser.wait(lambda: len(rows(browser, "Steps")) > 10, "the tables")
    track = browser.one("input[aria-label='Batch']")
    for _ in range(15):
        track.send_keys(Keys.ARROW_RIGHT)
    truth = server.json("/limits?batch=16&context=512&prompt=128")["decode"]
    sentence = roof.step_words("Decode, 16 at context 512", truth)
    browser.wait(lambda: sentence in browser.text(), sentence)
    expected = roof.op_rows(truth["ops"], server.json("/limits")["machine"])

    def shows_all() -> bool:
        table = rows(browser, "Steps")
        return all(row in table for row in expected)

    browser.wait(shows_all, f"the rows {expected}")
