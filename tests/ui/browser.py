"""A real browser on a real dashboard of a real server.

with showing(server.url) as url, Browser() as browser:
    browser.open(f"{url}inspector")
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from live_server import ROOT

#: Where screenshots go, for people to look at.
SCREENSHOTS = Path(os.environ.get("HEADRACE_SCREENSHOTS", ROOT / "build" / "screenshots"))
DESKTOP, PHONE = (1280, 800), (390, 844)
WAIT_S = 40.0
_AT = re.compile(r"The dashboard is at (http://\S+)")
_LOCAL = {"127.0.0.1", "localhost"}

T = TypeVar("T")


@contextlib.contextmanager
def showing(url: str, *arguments: str) -> Iterator[str]:
    """A `headrace ui` process over the server at url; gives its own address, with a slash at its
    end. It must end well, without a traceback."""
    with tempfile.TemporaryDirectory() as directory:
        log_path = Path(directory) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", "ui", "--url", url, "--port", "0", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )  # fmt: skip
        try:

            def address() -> str | None:
                assert process.poll() is None, log_path.read_text()
                found = _AT.search(log_path.read_text())
                return found[1] if found else None

            yield wait_for(address, "the dashboard to start")
            process.terminate()
            process.wait(20)
            said = log_path.read_text(encoding="utf-8", errors="replace")
            assert process.returncode == 0, said
            assert "Traceback" not in said, said
            assert not list(Path(directory).glob(".nicegui*")), "it left files where it was started"
        finally:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], T | None], what: str, within_s: float = WAIT_S) -> T:
    """What the condition gives once it gives something."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.05)
    raise AssertionError(f"waited {within_s:g} s for {what}")


class Browser:
    """Headless Chromium. It notes every request and every line of the console."""

    def __init__(self) -> None:
        options = Options()
        options.binary_location = _found("chromium", "chromium-browser", "google-chrome")
        for argument in (
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
        ):  # fmt: skip
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(_found("chromedriver")))
        self.look(DESKTOP, dark=False)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is not None:
            self.shoot("failed")
        self.driver.quit()

    # ---- how it looks -------------------------------------------------------------------------

    def look(self, size: tuple[int, int], dark: bool) -> None:
        """The size of the window, and the colours that the system prefers."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def shoot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(SCREENSHOTS / f"{name}.png"))

    def shoot_all(self, name: str) -> None:
        """Both sizes, light and dark; nothing may be wider than the window."""
        for width, size in (("desktop", DESKTOP), ("phone", PHONE)):
            for colours in ("light", "dark"):
                self.look(size, colours == "dark")
                time.sleep(0.4)  # for charts to take their new size
                self.shoot(f"{name}-{width}-{colours}")
                wide = self.run("return document.scrollingElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} on a {width} is {wide} px too wide"
        self.look(DESKTOP, dark=False)

    # ---- what it does -------------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Loads a page and waits until it is alive: it names the server's model, or its trouble."""
        self.driver.get(url)
        self.wait(lambda: self.text(".hr-server") not in ("", "…"), "the page to come alive")

    def leave(self) -> None:
        """Closes the page, as before its dashboard ends."""
        self.driver.get("about:blank")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str = "main") -> str:
        """The visible text of the first match; read at once, for it may be replaced meanwhile."""
        script = (
            "const found = document.querySelector(arguments[0]); "
            "return found?.checkVisibility() ? found.innerText : ''"
        )
        return str(self.run(script, selector))

    def button(self, name: str) -> WebElement:
        """The visible button of that text, or that label."""
        for button in self.all("button"):
            label = button.get_attribute("aria-label") or button.text.split("\n")[-1]
            if label.strip() == name and button.is_displayed():
                return button
        raise AssertionError(f"there is no button {name!r}")

    def has_button(self, name: str) -> bool:
        with contextlib.suppress(AssertionError):
            return bool(self.button(name))
        return False

    def wait(self, condition: Callable[[], T | None], what: str, within_s: float = WAIT_S) -> T:
        return wait_for(condition, what, within_s)

    # ---- what it saw --------------------------------------------------------------------------

    def must_be_clean(self, allowed: str = "") -> None:
        """No line of the console is an error (but those that hold `allowed`), and no request left
        the machine, since the last call."""
        errors = [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE" and not (allowed and allowed in entry["message"])
        ]
        assert not errors, errors
        foreign = [url for url in self.requests() if not _is_local(url)]
        assert not foreign, foreign

    def requests(self) -> list[str]:
        """URLs since the last call."""
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.append(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                urls.append(message["params"]["url"])
        return urls


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("data", "blob", "chrome") or parts.hostname in _LOCAL


def _found(*names: str) -> str:
    for name in names:
        if path := shutil.which(name):
            return path
    raise AssertionError(f"{names[0]} is missing: apt-get install chromium chromium-driver")
