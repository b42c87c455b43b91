"""What tests of live pages share: load on a server, its snapshots beside, and what charts hold."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
from browser import Browser

from live_server import LiveServer


def generate(server: LiveServer, count: int, tokens: int) -> None:
    """So many requests at once, to their end; half of their prompts begin alike."""

    def one(number: int) -> None:
        text = "The mill stood at the end of the headrace. " * (12 + 6 * (number % 2))
        body = {"prompt": f"{text} Visitor {number} asked", "max_tokens": tokens,
                "ignore_eos": True, "seed": number}  # fmt: skip
        answer = httpx.post(f"{server.api}/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def snapshot(server: LiveServer) -> dict[str, Any]:
    """The newest one."""
    text = server.get("/events", params={"count": 1}).text
    found: dict[str, Any] = json.loads(text.removeprefix("data: "))
    return found


class Snapshots:
    """Snapshots of a server by their time in ms, as somebody beside the page receives them."""

    def __init__(self, server: LiveServer) -> None:
        self._url = f"{server.url}/events?interval=0.25"  # every one that a page may see
        self.by_time: dict[float, dict[str, Any]] = {}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """While the block runs; from the first snapshot on."""
        stop, begun = threading.Event(), threading.Event()

        def listen() -> None:
            with httpx.stream("GET", self._url, timeout=30) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        one = json.loads(line[6:])
                        self.by_time[round(1e3 * one["time"])] = one
                        begun.set()
                        if stop.is_set():
                            return

        thread = threading.Thread(target=listen)
        thread.start()
        assert begun.wait(60)
        try:
            yield
        finally:
            stop.set()
            thread.join()


def chart(browser: Browser, section: str, option: str) -> Any:
    """A part of the options of the chart in a section, as ECharts holds them: a JS expression on
    `o`."""
    return browser.run(
        "const section = document.querySelector(`section[aria-label='${arguments[0]}']`);"
        "const box = section.querySelector('.nicegui-echart');"
        f"const o = getElement(+box.id.slice(1)).chart?.getOption(); return o && ({option});",
        section,
    )


def figure(browser: Browser, name: str) -> str:
    """The text of one tile."""
    return browser.text(f"dd[data-figure='{name}']")


def rows(browser: Browser, section: str) -> list[list[str]]:
    """The visible tables of a section, row by row, heads first."""
    found: list[list[str]] = browser.run(
        "return [...document.querySelectorAll(`section[aria-label='${arguments[0]}'] tr`)]"
        ".filter((row) => row.checkVisibility())"
        ".map((row) => [...row.cells].map((cell) => cell.innerText))",
        section,
    )
    return found
