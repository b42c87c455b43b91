"""The chat page in a real browser: stream, stop, edit, answer again, and what an answer cost."""

from __future__ import annotations

import re

import pytest
from browser import Browser
from selenium.webdriver.common.keys import Keys

from live_server import LiveServer

pytestmark = pytest.mark.ui

BOX = "textarea[aria-label='Your message']"


def _field(browser: Browser, label: str, value: str) -> None:
    box = next(f for f in browser.all(".q-field") if label in f.text or label in str(
        f.get_attribute("aria-label")))  # fmt: skip
    entry = box.find_element("css selector", "input, textarea")
    entry.send_keys(Keys.CONTROL + "a" + Keys.NULL + value + Keys.TAB)


def _say(browser: Browser, text: str) -> None:
    browser.one(BOX).send_keys(text + Keys.ENTER)


def _done(browser: Browser, num_answers: int = 1) -> str:
    """The last answer's text, once so many are complete."""

    def complete() -> bool:
        busy = browser.all("[aria-busy=true]")
        return not busy and len(browser.all(".hr-prose")) >= num_answers

    browser.wait(complete, f"{num_answers} answers")
    return browser.all(".hr-answer")[-1].text


def test_an_answer_arrives_in_pieces_with_its_account(browser: Browser, dashboard: str) -> None:
    browser.open(dashboard)
    _field(browser, "Most tokens", "1200")
    _say(browser, "Write a long story about a river.")
    lengths: list[int] = []

    def grown() -> bool:
        lengths.append(len(browser.text("[aria-busy=true] .hr-flow")))
        return len({n for n in lengths if n}) >= 3

    browser.wait(grown, "text to grow in steps")
    assert lengths == sorted(lengths)
    answer = _done(browser)
    assert re.search(r"\d+ tokens\b", answer)
    assert re.search(r"[\d.]+ tok/s", answer)
    assert re.search(r"first token after [\d.]+ m?s", answer)
    assert re.search(r"\d+ % of the bound|\d+% of the bound", answer)
    assert re.search(r"\d+ of \d+ prompt tokens cached", answer)
    browser.shoot_all("chat")


def test_stop_ends_the_request_and_the_page_lives_on(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    browser.open(dashboard)
    _field(browser, "Most tokens", "3000")
    _say(browser, "Write a long story about a river.")
    browser.wait(lambda: browser.text("[aria-busy=true] .hr-flow"), "the first words")
    browser.button("Stop").click()
    assert "stopped" in _done(browser)
    assert server.idle()
    _field(browser, "Most tokens", "8")
    _say(browser, "Say yes.")
    assert "8 tokens" in _done(browser, 2) or "token" in _done(browser, 2)


def test_a_seed_gives_what_the_api_gives_and_edits_go_back(
    browser: Browser, dashboard: str, server: LiveServer
) -> None:
    browser.open(dashboard)
    _field(browser, "Most tokens", "12")
    seed = 17399814703227594535  # as an account has them: no number of a browser
    _field(browser, "Seed", f"{seed}")

    def expected(text: str) -> str:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 12, "seed": seed,
                "temperature": 0.8, "min_p": 0.05}  # fmt: skip
        answer = server.json("/v1/chat/completions", body)
        return str(answer["choices"][0]["message"]["content"])

    def words(text: str) -> str:
        return " ".join(re.findall(r"\w+", text))

    _say(browser, "Name a colour.")
    assert words(expected("Name a colour.")) in words(_done(browser))
    assert f"seed {seed}" in browser.text(".hr-answer .hr-facts")
    browser.button("Edit and send again").click()
    edit = browser.wait(
        lambda: next((e for e in browser.all("textarea[aria-label='Edit your message']")
                      if e.is_displayed()), None), "the editor")  # fmt: skip
    assert edit.size["width"] > 0.9 * browser.one(".hr-turn.hr-answer").size["width"]
    edit.send_keys(Keys.CONTROL + "a" + Keys.NULL + "Name a river.")
    browser.button("Send again").click()
    browser.wait(lambda: "Name a river." in browser.text(".hr-question"), "the edited question")
    assert words(expected("Name a river.")) in words(_done(browser))
    assert len(browser.all(".hr-question")) == 1
    browser.button("Answer again").click()
    browser.wait(lambda: browser.all("[aria-busy=true]") or True, "a new answer")
    assert words(expected("Name a river.")) in words(_done(browser))
    assert len(browser.all(".hr-prose")) == 1


def test_what_a_person_writes_is_text(browser: Browser, dashboard: str) -> None:
    browser.open(dashboard)
    _field(browser, "Most tokens", "4")
    evil = "<img src=//example.com/x onerror=\"document.title='owned'\"> <b>bold</b>"
    _say(browser, evil)
    browser.wait(lambda: browser.text(".hr-question .hr-flow") == evil, "the question as text")
    _done(browser)
    assert browser.driver.title != "owned"
    assert not browser.all(".hr-turn img, .hr-turn b")
