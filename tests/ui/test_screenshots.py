"""Every page as somebody would meet it, with a server at work, at both sizes, light and dark.

`make ui-screenshots` writes them to a folder for people to look at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from browser import Browser, showing
from selenium.webdriver.common.keys import Keys
from watching import figure, generate, rows

from headrace.ui.registry import PAGES
from live_server import ROOT, LiveServer

pytestmark = pytest.mark.ui


@contextmanager
def _at_work(server: LiveServer) -> Iterator[None]:
    """A few streams, one after another, until the block ends."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            generate(server, 4, 40)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _chat(browser: Browser) -> None:
    box = browser.one("textarea[aria-label='Your message']")
    box.send_keys("Name three rivers, and say a word about each." + Keys.ENTER)
    browser.wait(lambda: browser.all(".hr-prose"), "the answer", within_s=90)


def _inspector(browser: Browser) -> None:
    browser.button("Generate").click()
    tokens = browser.wait(lambda: browser.all(".hr-strip .hr-token"), "tokens")
    tokens[0].click()
    browser.wait(lambda: browser.all(".hr-ladder tbody tr"), "candidates")
    browser.wait(lambda: browser.has_button("Generate"), "its end", within_s=90)


def _sampling(browser: Browser) -> None:
    browser.button("Look at the next token").click()
    browser.wait(lambda: "candidates" in browser.text(), "the position")


def _serving(browser: Browser) -> None:
    browser.wait(lambda: browser.all(".hr-node"), "the tree")
    browser.wait(lambda: figure(browser, "tok/s out") not in ("", "0"), "tokens")


def _limits(browser: Browser) -> None:
    browser.wait(
        lambda: figure(browser, "decode, of the bound") not in ("", "—", "idle"),
        "a share of the bound",
    )


def _plan(browser: Browser) -> None:
    browser.wait(lambda: len(rows(browser, "Memory")) > 2, "the table")


def _lab(browser: Browser) -> None:
    browser.wait(lambda: browser.all(".hr-pick"), "the list")
    run = [one for one in browser.all(".hr-pick") if "not run yet" not in one.text]
    (run or browser.all(".hr-pick"))[0].click()
    browser.wait(lambda: browser.all(".hr-pick[aria-current=true]"), "its page")


_STATES: dict[str, Callable[[Browser], None]] = {
    "chat": _chat,
    "inspector": _inspector,
    "sampling": _sampling,
    "serving": _serving,
    "limits": _limits,
    "plan": _plan,
    "lab": _lab,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_screenshots(browser: Browser, server: LiveServer, page) -> None:  # type: ignore[no-untyped-def]
    results = str(ROOT / "lab-results")
    with showing(server.url, "--lab-dir", results) as dashboard, _at_work(server):
        browser.open(dashboard.rstrip("/") + page.path)
        _STATES[page.name](browser)
        browser.shoot_all(f"at-work-{page.name}")
        browser.driver.get("about:blank")  # before the dashboard goes
