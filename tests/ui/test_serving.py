"""The serving page in a real browser: its figures are those of /events, /kv_map, /prefix_tree."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from browser import Browser
from selenium.webdriver.common.keys import Keys
from watching import Snapshots, chart, figure, generate, rows, snapshot

from headrace.ui.facts import watch
from live_server import LiveServer

pytestmark = pytest.mark.ui


def test_figures_are_those_of_the_server(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    snapshots = Snapshots(server)
    browser.open(f"{dashboard}serving")
    browser.wait(lambda: figure(browser, "running") == "0", "the first snapshot")
    seen = []
    with snapshots.recording():
        load = threading.Thread(target=generate, args=(server, 6, 200))
        load.start()
        while load.is_alive():
            seen += [row[1] for row in rows(browser, "Requests") if len(row) > 5]
        assert server.idle()
        finished = snapshot(server)["requests"]["finished"]
        done = f"{finished['stop'] + finished['length']:,}"
        browser.wait(lambda: figure(browser, "finished") == done, "the end on the page")
    assert "decode" in seen
    browser.wait(lambda: figure(browser, "running") == "0", "nothing running")

    held = {row[0]: row for row in chart(browser, "Requests", "o.dataset[0].source")}
    steps = {row[0]: row for row in chart(browser, "What steps compute", "o.dataset[0].source")}
    compared = 0
    for before, now in pairwise(sorted(held)):
        if before in snapshots.by_time and now in snapshots.by_time:
            one, two = snapshots.by_time[before], snapshots.by_time[now]
            assert held[now] == watch.load_point(one, two)
            assert steps[now] == watch.step_point(one, two)
            compared += 1
    assert compared >= 3
    assert max(row[1] for row in held.values()) >= 1

    first = chart(browser, "Time to first token", "o.series[0].data")
    gaps = chart(browser, "Between two tokens", "o.series[0].data")
    assert sum(first) >= 6
    assert sum(gaps) >= 6 * 20


def test_blocks_and_prefixes_are_those_of_the_server(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    generate(server, 4, 8)
    assert server.idle()
    browser.open(f"{dashboard}serving")
    truth = server.json("/kv_map?max=1024")
    browser.wait(lambda: browser.text(".hr-blocks"), "the map")
    shown = browser.text(".hr-blocks").replace("·", "f").replace("\n", "")
    assert shown == truth["map"]
    for state, count in truth["counts"].items():
        assert f"{count:,} {state}" in browser.text("section[aria-label='KV cache']")

    tree = server.json("/prefix_tree?max_nodes=200")
    nodes = browser.wait(lambda: browser.all(".hr-node"), "the tree")
    assert len(nodes) == len(tree["list"])
    names = sorted(
        browser.run("return [...document.querySelectorAll('.hr-node')].map((n) => n.title)")
    )
    assert names == sorted(_words(node, tree["list"]) for node in tree["list"])

    browser.one(".hr-node[tabindex='0']").send_keys(Keys.ARROW_LEFT)  # closes the first
    closed = browser.wait(lambda: browser.all(".hr-node[aria-expanded=false]"), "a closed node")
    below = len(browser.all(".hr-node"))
    assert below < len(nodes)
    closed[0].send_keys(Keys.ENTER)
    browser.wait(lambda: len(browser.all(".hr-node")) == len(nodes), "the same nodes again")
    browser.shoot_all("serving")


def _words(node: dict, listed: list[dict]) -> str:  # type: ignore[type-arg]
    there = sum(other["parent"] == node["id"] for other in listed)
    unseen = node["children"] - there
    words = f"tokens {node['start']} to {node['start'] + node['tokens']}, {node['children']} "
    words += "continuations" + (f" ({unseen} not shown)" if unseen else "")
    words += f", used by {node['holders']}" if node["holders"] else ""
    return words + (", a salted tenant's" if node["salt"] else "")
