"""The token inspector in a real browser: figures on the page equal those computed here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from browser import Browser
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from live_server import LiveServer

pytestmark = pytest.mark.ui

PROMPT = "Explain in two sentences why the sky is blue."
TOKENS = ".hr-branch .hr-token"


def _generate(browser: Browser, dashboard: str) -> int:
    """Generates the given prompt; the number of tokens."""
    browser.open(f"{dashboard}inspector")
    browser.button("Generate").click()
    browser.wait(lambda: len(browser.all(TOKENS)) > 1, "the first tokens")
    browser.wait(lambda: browser.has_button("Generate"), "the end of the answer")
    browser.wait(lambda: "tok/s" in browser.text(".hr-branch"), "the account")
    return len(browser.all(TOKENS))


def _pick(browser: Browser, number: int) -> None:
    browser.all(TOKENS)[number].click()
    browser.wait(lambda: f"Token {number + 1}," in browser.text(), f"token {number + 1}")


def _cells(browser: Browser, stage: str) -> list[float | None]:
    """The numbers of one column."""
    found = browser.run(
        "return [...document.querySelectorAll(`td[data-stage=${arguments[0]}]`)]"
        ".map((cell) => cell.dataset.p ?? null)", stage)  # fmt: skip
    return [None if p is None else float(p) for p in found]


def _set(browser: Browser, name: str, value: float) -> None:
    """Moves a slider with the keyboard, as anybody can."""
    slider = browser.one(f"input[type=range][aria-label='{name}']")
    for _ in range(400):
        now = _position(slider)
        if abs(now - value) < 1e-6:
            return
        slider.send_keys(Keys.ARROW_RIGHT if now < value else Keys.ARROW_LEFT)
        browser.wait(lambda now=now: _position(slider) != now, "the slider's answer to the key")
    raise AssertionError(f"{name} does not reach {value}")


def _position(slider: WebElement) -> float:
    return float(slider.get_property("value") or "nan")


def _trace(server: LiveServer, num_named: int) -> dict[str, Any]:
    """The first position's trace, from the server itself."""
    messages = [{"role": "user", "content": PROMPT}]
    answer = server.json(
        "/v1/chat/completions",
        {"messages": messages, "max_tokens": 1, "sampler_trace": num_named, "temperature": 0.8},
    )
    trace: dict[str, Any] = answer["choices"][0]["sampler_trace"][0]
    return trace


def _thinned(logits: np.ndarray, t: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """docs/sampling.md in numpy, float64, over the first k candidates."""
    z = logits[:top_k] / t
    p = np.exp(z - z.max())
    p /= p.sum()
    keep = np.arange(p.size) <= np.searchsorted(np.cumsum(p), top_p)
    p = np.where(keep, p, 0) / p[keep].sum()
    keep &= p >= min_p * p.max()
    result: np.ndarray = np.where(keep, p, 0) / p[keep].sum()
    return result


def test_sliders_recompute_what_numpy_computes(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    _generate(browser, dashboard)
    _pick(browser, 0)
    _set(browser, "Temperature", 1.3)
    _set(browser, "Top-k", 12)
    browser.wait(lambda: "exact" in browser.text(), "the sliders' story")
    logits = np.array([one["logit"] for one in _trace(server, 64)["stages"][1]["after"]["top"]])
    truth = _thinned(logits, 1.3, 12, 0.95, 0.05)

    def equal() -> bool:
        shown = [p or 0.0 for p in _cells(browser, "min_p")][:12]
        return len(shown) == 12 and bool(np.allclose(shown, truth, rtol=1e-6))

    browser.wait(equal, f"bars equal to {truth}", 10)
    widths = browser.run(
        "return [...document.querySelectorAll('td[data-stage=min_p] .hr-bar')].map((bar) => "
        "bar.getBoundingClientRect().width / (bar.parentElement.clientWidth - 16))")  # fmt: skip
    np.testing.assert_allclose(widths, truth[truth > 0], atol=0.02)
    assert "removed" in browser.text(".hr-ladder")
    _set(browser, "Typical-p", 0.9)
    browser.wait(lambda: _cells(browser, "typical"), "the stage that was off")
    z = logits[:12] / 1.3
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    near = np.argsort(np.abs(-np.log(p) + (p * np.log(p)).sum()), kind="stable")
    kept = near[: np.searchsorted(np.cumsum(p[near]), 0.9) + 1]
    typical = np.where(np.isin(np.arange(12), kept), p, 0) / p[kept].sum()
    shown = [cell or 0.0 for cell in _cells(browser, "typical")][:12]
    np.testing.assert_allclose(shown, typical, rtol=1e-6)
    browser.shoot_all("inspector")


def test_between_temperatures_and_past_the_named_it_says_approximate(
    browser: Browser, dashboard: str
) -> None:
    _generate(browser, dashboard)
    _pick(browser, 1)
    _set(browser, "Top-k", 80)
    browser.wait(lambda: "top-k 80 keeps more than the 64" in browser.text(), "the reason")
    assert "approximate" in browser.text()
    browser.button("Show it as drawn").click()
    browser.wait(lambda: "As it was drawn." in browser.text(), "the draw again")


def test_the_strip_is_walked_with_keys(browser: Browser, dashboard: str) -> None:
    number = _generate(browser, dashboard)
    _pick(browser, 0)
    keys = browser.driver.switch_to.active_element
    keys.send_keys(Keys.ARROW_RIGHT)
    browser.wait(lambda: "Token 2," in browser.text(), "the second token")
    browser.driver.switch_to.active_element.send_keys(Keys.END)
    browser.wait(lambda: f"Token {number}," in browser.text(), "the last token")
    assert len(browser.all(f"{TOKENS}[tabindex='0']")) == 1
    assert len(browser.all(f"{TOKENS}[aria-selected=true]")) == 1
    label = browser.all(TOKENS)[-1].get_attribute("aria-label")
    assert "probability" in str(label)
    assert "entropy" in str(label)


def test_a_fork_goes_on_from_another_candidate(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    _generate(browser, dashboard)
    _pick(browser, 2)
    before = [token.text for token in browser.all(TOKENS)]
    row = next(row for row in browser.all(".hr-ladder tbody tr") if "drawn" not in row.text)
    candidate = row.find_element("css selector", ".hr-candidate").text
    row.find_element("css selector", ".hr-fork").click()
    browser.wait(lambda: len(browser.all(".hr-branch")) == 2, "the branch")
    browser.wait(lambda: len(browser.all(".hr-branch:nth-of-type(n+2) .hr-token")) > 3, "tokens")
    first = browser.all(".hr-branch")[1].find_elements("css selector", ".hr-token")[0]
    assert first.text.strip() == candidate.strip("'\" ")
    browser.wait(lambda: browser.has_button("Generate"), "the end of the branch")
    assert [t.text for t in browser.all(".hr-branch")[0].find_elements(
        "css selector", ".hr-token")] == before  # fmt: skip
    assert server.idle()


#: Presses Stop within the browser once some tokens are there: an answer may end before a test has
#: seen them and said so.
_STOP_EARLY = """
const watch = setInterval(() => {
  if (document.querySelectorAll(arguments[0]).length <= 3) return;
  const buttons = [...document.querySelectorAll("button")];
  const stop = buttons.find(one => one.innerText.trim().endsWith("Stop"));
  if (stop) { clearInterval(watch); stop.click(); }
}, 5);
"""


def test_stop_keeps_what_came(browser: Browser, dashboard: str, server: LiveServer) -> None:
    browser.open(f"{dashboard}inspector")
    prompt = browser.one("textarea[aria-label='Prompt']")
    prompt.send_keys(Keys.CONTROL + "a" + Keys.NULL + "Count to a thousand: one, two,")
    browser.button("as plain text").click()
    browser.run(_STOP_EARLY, TOKENS)
    browser.button("Generate").click()
    browser.wait(lambda: "stopped" in browser.text(".hr-branch"), "the word")
    assert 3 < len(browser.all(TOKENS)) < 128
    assert server.idle()
    _pick(browser, 1)
