"""The plan page in a real browser: its table is the planner's, before and after a slider moves."""

from __future__ import annotations

from typing import Any

import pytest
from browser import Browser, showing
from selenium.webdriver.common.keys import Keys
from watching import chart, rows

from headrace.limits.plan import ask, plan
from headrace.limits.plan.hardware import find_hardware
from headrace.limits.plan.report import memory_columns, time_columns
from headrace.ui.facts import planning
from live_server import LiveServer

pytestmark = pytest.mark.ui


def _expected(server: LiveServer, **options: Any) -> tuple[list[list[str]], list[list[str]], Any]:
    here = planning.server_hardware(server.json("/limits"), is_here=True)
    assert here is not None
    machines = [here, find_hardware("l40s"), find_hardware("h100")]
    table = plan(ask("smollm2-135m", hardware=machines, **options))
    sheets = [
        [[c.head for c in columns], *([c.cell(row) for c in columns] for row in table.rows)]
        for columns in (memory_columns(), time_columns(table))
    ]
    return sheets[0], sheets[1], table


def test_the_table_is_the_planners(browser: Browser, dashboard: str, server: LiveServer) -> None:
    browser.open(f"{dashboard}plan")
    memory, times, table = _expected(server, context="4096", concurrency="1,32")
    browser.wait(lambda: rows(browser, "Memory") == memory, "the planner's memory")
    browser.wait(lambda: rows(browser, "Times") == times, "the planner's times")
    advice = browser.text("section[aria-label='Advice']")
    for verdict in table.recommendation.verdicts:
        assert verdict in advice
    assert table.serve.text in advice
    for engine in table.engines:
        assert f"{engine.engine}: {engine.why}" in advice
    assert chart(browser, "Memory", "o.series[1].data") == [
        round(row.memory.kv / 1e9, 3) for row in table.rows
    ]
    browser.shoot_all("plan")

    for name, key, change in (
        ("Context", Keys.ARROW_LEFT, {"context": "3072", "concurrency": "1,32"}),
        ("At once", Keys.ARROW_RIGHT, {"context": "3072", "concurrency": "1,48"}),
    ):
        browser.one(f"input[aria-label='{name}']").send_keys(key)
        memory, times, _ = _expected(server, **change)
        browser.wait(lambda want=memory: rows(browser, "Memory") == want, f"{name}: memory")
        browser.wait(lambda want=times: rows(browser, "Times") == want, f"{name}: times")

    browser.one("section[aria-label='Why'] summary").click()
    browser.wait(lambda: "The model" in browser.text("section[aria-label='Why']"), "formulas")
    assert ["KV of a token", "layers × KV heads × (key + value) × bytes of a number",
            "30 × 3 × (64 + 64) × 2", "23,040"] in [
        [row[0], row[1], row[2], row[3].split()[0]] for row in rows(browser, "Why") if len(row) == 4
    ]  # fmt: skip


def test_what_makes_no_sense_is_said_and_taken_back(browser: Browser, dashboard: str) -> None:
    browser.open(f"{dashboard}plan")
    browser.wait(lambda: len(rows(browser, "Memory")) > 2, "the table")
    before = rows(browser, "Memory")
    output = browser.one("input[aria-label='Output']")
    output.send_keys(Keys.ARROW_RIGHT * 26)
    browser.wait(lambda: "do not fit the context" in browser.text(".hr-warn"), "the sentence")
    output.send_keys(Keys.ARROW_LEFT * 26)
    browser.wait(lambda: not browser.text(".hr-warn"), "silence")
    assert rows(browser, "Memory") == before


def test_it_plans_without_a_server(browser: Browser) -> None:
    with showing("http://127.0.0.1:9") as dashboard:
        browser.open(f"{dashboard}plan")
        browser.wait(lambda: len(rows(browser, "Memory")) == 5, "rows of two machines")
        assert rows(browser, "Memory")[1][0] == "l40s"
        browser.driver.get("about:blank")  # before the dashboard goes
