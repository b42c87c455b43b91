"""The lab page in a real browser: a quick run to its end, one that is stopped, and its pictures."""

from __future__ import annotations

import html
import json
from pathlib import Path

import httpx
import pytest
from browser import Browser, showing

from live_server import LiveServer

pytestmark = pytest.mark.ui

#: The quickest that draws a picture.
NAME = "paging"
RUN_S = 300.0


def _pick(browser: Browser, name: str) -> None:
    browser.wait(lambda: browser.all(".hr-pick"), "the list")
    for button in browser.all(".hr-pick"):
        if button.text.split("\n")[0] == name:
            button.click()
            break
    browser.wait(lambda: name in browser.text(".hr-pick[aria-current=true]"), "its page")


def test_a_run_to_its_end(browser: Browser, server: LiveServer, tmp_path: Path) -> None:
    results = tmp_path / "results"
    with showing(server.url, "--lab-dir", str(results)) as dashboard:
        browser.open(f"{dashboard}lab")
        _pick(browser, NAME)
        browser.button("Run").click()
        browser.wait(lambda: " left" in browser.text(), "progress", within_s=60)
        browser.wait(lambda: "Conclusions" in browser.text(), "the result", within_s=RUN_S)
        found = json.loads((results / NAME / "result.json").read_text(encoding="utf-8"))
        text = browser.text()
        for prediction in found["predictions"]:
            assert prediction["what"] in text
            assert prediction["verdict"] in text
        for conclusion in found["conclusions"]:
            assert conclusion["text"] in text
        for figure in found["figures"]:
            path = f"lab-figure/{NAME}/{figure['file']}"
            shown = browser.one(f"img[src*='{path}']")
            browser.wait(lambda shown=shown: shown.get_property("naturalWidth"), "the picture")
            assert shown.get_attribute("alt") == figure["alt"]
            answer = httpx.get(f"{dashboard}{path}")
            assert answer.content == (results / NAME / figure["file"]).read_bytes()
            assert answer.headers["content-type"] == "image/png"
        secret = tmp_path / "secret.png"
        secret.write_bytes(answer.content)
        for path in (f"{NAME}/..%2f..%2fsecret.png", "..%2f/secret.png", f"{NAME}/result.json",
                     f"%2e%2e/{tmp_path.name}/secret.png"):  # fmt: skip
            assert httpx.get(f"{dashboard}lab-figure/{path}").status_code in (400, 404)
        report = httpx.get(f"{dashboard}lab-report", timeout=60)
        assert report.status_code == 200
        assert found["conclusions"][0]["text"].split("^")[0][:30] in html.unescape(report.text)
        assert "default-src 'none'" in report.headers["content-security-policy"]
        by_proxy = {"x-forwarded-for": "192.0.2.1"}
        assert httpx.get(f"{dashboard}lab-report", headers=by_proxy).status_code == 403
        assert browser.one("a[href$='/lab-report']").is_displayed()
        browser.shoot_all("lab")
        browser.driver.get("about:blank")  # before the dashboard goes


def test_one_at_a_time_for_all_and_it_can_be_stopped(
    browser: Browser, server: LiveServer, tmp_path: Path
) -> None:
    with showing(server.url, "--lab-dir", str(tmp_path / "results")) as dashboard:
        browser.open(f"{dashboard}lab")
        _pick(browser, "roofline")
        browser.button("Run").click()
        browser.wait(lambda: browser.has_button("Stop"), "the run")
        browser.driver.refresh()  # another page sees the same run
        browser.wait(lambda: browser.has_button("Stop"), "the run on another page")
        _pick(browser, "kv-cache")
        browser.wait(lambda: "roofline is running" in browser.text(), "the reason")
        assert not browser.has_button("Run")
        _pick(browser, "roofline")
        browser.button("Stop").click()
        browser.wait(lambda: "was stopped" in browser.text(".hr-notice"), "the end", within_s=20)
        assert browser.has_button("Run")
        assert not list((tmp_path / "results").glob("*"))
        browser.driver.get("about:blank")
