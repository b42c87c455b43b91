"""The sampling page in a real browser."""

from __future__ import annotations

import pytest
from browser import Browser

from live_server import LiveServer

pytestmark = pytest.mark.ui


def test_a_position_and_a_grid(browser: Browser, dashboard: str, server: LiveServer) -> None:
    browser.open(f"{dashboard}sampling")
    browser.button("Look at the next token").click()
    browser.wait(lambda: "Of 49,152 candidates" in browser.text(), "the position")
    truth = server.json(
        "/v1/completions",
        {"prompt": "The best thing about rain is", "max_tokens": 1, "sampler_trace": 5},
    )["choices"][0]["sampler_trace"][0]
    first = truth["model"]["top"][0]
    told = f"{truth['texts'][str(first['id'])]!r} {first['probability']:.1%}"
    assert told in browser.text()
    browser.button("Draw it and go on").click()
    text = "textarea[aria-label='Text so far']"
    browser.wait(lambda: len(browser.one(text).get_attribute("value")) > 28, "a longer text")
    browser.button("Fill the grid").click()
    browser.wait(
        lambda: browser.text().count("distinct-2 ") >= 12, "twelve outputs")  # fmt: skip
    greedy = browser.all(".hr-grid tbody tr:first-child .hr-flow")
    browser.wait(lambda: len({cell.text for cell in greedy}) == 1, "equal greedy outputs")
    browser.shoot_all("sampling")


def test_stop_ends_all_of_a_grid(browser: Browser, dashboard: str, server: LiveServer) -> None:
    browser.open(f"{dashboard}sampling")
    browser.button("Fill the grid").click()
    browser.wait(lambda: browser.text(".hr-grid .hr-flow"), "the first words")
    browser.button("Stop").click()
    assert server.idle()
    browser.wait(lambda: browser.has_button("Fill the grid"), "the buttons")
