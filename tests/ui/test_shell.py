"""What all pages have in common, in a real browser; and servers that fail, or mean harm."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from browser import Browser, showing
from selenium.webdriver.common.keys import Keys

from headrace.ui.registry import PAGES
from live_server import serving

pytestmark = pytest.mark.ui

EVIL = (
    "<script>document.title='owned'</script><img src='http://example.com/a.png' onerror=alert(1)>"
    "![x](http://example.com/b.png) [click](javascript:document.title='owned') "
    "<iframe src='http://example.com/'></iframe>\n\n```\n</code></pre><script>alert(1)</script>\n"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_opens_clean_at_both_sizes(browser: Browser, dashboard: str, page) -> None:  # type: ignore[no-untyped-def]
    browser.open(dashboard.rstrip("/") + page.path)
    assert browser.driver.title.startswith(page.title)
    assert browser.text(".hr-server") == "smollm2-135m"
    assert browser.one("nav a[aria-current=page]").text.endswith(page.title)
    unnamed = browser.run(
        "return [...document.querySelectorAll('button, a, input, textarea, select')]"
        ".filter((e) => e.checkVisibility() && !(e.innerText.trim() || e.ariaLabel || e.title || "
        "e.labels?.length || e.placeholder)).map((e) => e.outerHTML.slice(0, 200))"
    )
    assert not unnamed, "no name for those who cannot see them"
    browser.shoot_all(f"page-{page.name}")


def test_colours_follow_the_system_or_the_button(browser: Browser, dashboard: str) -> None:
    def is_dark() -> bool:
        return bool(browser.run("return document.body.classList.contains('body--dark')"))

    browser.open(dashboard)
    assert not is_dark()
    browser.look((1280, 800), dark=True)
    browser.wait(is_dark, "dark colours")
    browser.one(".hr-theme").click()  # light, whatever the system says
    browser.wait(lambda: not is_dark(), "light colours")
    browser.driver.refresh()
    browser.wait(lambda: browser.all(".hr-theme[title='Colours: light']"), "the browser's memory")
    assert not is_dark()
    browser.one(".hr-theme").click()
    browser.one(".hr-theme").click()
    browser.wait(is_dark, "the system's colours again")
    browser.look((1280, 800), dark=False)


def _say(browser: Browser, text: str) -> None:
    browser.one("textarea[aria-label='Your message']").send_keys(text + Keys.ENTER)


@contextmanager
def _answering(chat: bytes, status: int = 200) -> Iterator[str]:
    """A server of somebody else's, that answers every chat with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, json.dumps({"data": [{"id": "<b>evil</b>"}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self._send(status, chat)

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("retry-after", "3")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def _event(text: str) -> bytes:
    event = {"choices": [{"delta": {"content": text}, "token_ids": [1]}]}
    return f"data: {json.dumps(event)}\n\n".encode()


def test_hostile_text_stays_text(browser: Browser) -> None:
    with _answering(_event(EVIL) + b"data: [DONE]\n\n") as url, showing(url) as dashboard:
        browser.open(dashboard)
        assert browser.text(".hr-server") == "<b>evil</b>"
        _say(browser, "hello")
        browser.wait(lambda: browser.all(".hr-prose"), "the answer")
        assert not browser.all("main img, main script, main iframe, main a[href^=javascript]")
        assert "owned" not in browser.driver.title
        browser.must_be_clean()
        browser.leave()


@pytest.mark.parametrize(
    ("status", "answer", "sentence"),
    [
        (429, b'{"error": {"message": "The queue is full."}}', "busy: The queue is full."),
        (503, b'{"error": {"message": "The model is loading."}}', "The model is loading."),
        (500, b"<html>", "status 500"),
        (200, b"data: {not json\n\n", "no Headrace server"),
        (200, b'data: {"error": {"message": "The step failed."}}\n\n', "The step failed."),
        (200, b"data: []\n\ndata: 7\n\n", "no Headrace server"),
    ],
)
def test_a_failure_is_one_sentence_and_the_page_lives_on(
    browser: Browser, status: int, answer: bytes, sentence: str
) -> None:
    with _answering(answer, status) as url, showing(url) as dashboard:
        browser.open(dashboard)
        for _ in range(2):
            _say(browser, "hello")
            browser.wait(lambda: sentence in browser.text(".hr-notice"), sentence)
            browser.button("Dismiss").click()
            browser.wait(lambda: not browser.text(".hr-notice"), "silence")
        browser.leave()


def test_a_server_that_goes_is_missed_and_found_again(browser: Browser) -> None:
    with serving("smollm2-135m") as server, showing(server.url) as dashboard:
        browser.open(dashboard)
        server.stop()
        _say(browser, "hello")
        browser.wait(lambda: "cannot be reached" in browser.text(".hr-notice"), "the sentence")
        browser.wait(lambda: browser.text(".hr-server") == "not reachable", "the header")
        port = server.url.rsplit(":", 1)[1]
        with serving("smollm2-135m", "--port", port):
            browser.wait(lambda: browser.text(".hr-server") == "smollm2-135m", "the header")
            browser.leave()
