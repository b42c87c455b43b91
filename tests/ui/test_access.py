"""Every page for whoever sees little or uses no mouse: names, contrast, focus, motion."""

from __future__ import annotations

from typing import Any

import pytest
from browser import DESKTOP, PHONE, Browser
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from headrace.ui.registry import PAGES
from headrace.ui.shell import Page

pytestmark = pytest.mark.ui

#: Of WCAG 2.2, AA: 4.5 for text, 3 for large text.
_CONTRAST = r"""
const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const parse = (colour) => {
  paint.clearRect(0, 0, 1, 1); paint.fillStyle = '#000'; paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = paint.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = (top, ground) => [0, 1, 2].map((i) => top[i] * top[3] + ground[i] * (1 - top[3]));
const light = (colour) => {
  const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const low = [];
let seen = 0;
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; (node = texts.nextNode()); ) {
  const e = node.parentElement, said = node.textContent.trim();
  if (!said || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)) continue;
  if (!e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true })) continue;
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  if (box.width < 2 || box.right < 0 || e.closest('[disabled]')) continue;
  let grounds = [], opacity = 1;
  for (let up = e; up; up = up.parentElement) {
    const own = getComputedStyle(up), ground = parse(own.backgroundColor);
    opacity *= Number(own.opacity);
    if (ground[3]) grounds.push(ground);
    if (ground[3] === 1) break;
  }
  const ground = grounds.reverse().reduce((below, one) => over(one, below), [255, 255, 255]);
  const ink = parse(e instanceof SVGElement ? style.fill : style.color);
  ink[3] *= opacity;
  const [a, b] = [light(over(ink, ground)), light(ground)].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  seen += 1;
  if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) low.push([said.slice(0, 40), ((a + 0.05) / (b + 0.05)).toFixed(2)]);
}
return [seen, low];
"""  # noqa: E501
_FOCUS = """
const e = document.activeElement, style = getComputedStyle(e);
const seen = (style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2)
  || / 0px 0px 0px 5px/.test(style.boxShadow)
  || !!e.closest('.q-field--focused, .q-field--highlighted');
return [e.tagName, e.getAttribute('aria-label') || e.innerText || e.placeholder || '', seen];
"""
_NAMED = {
    "button", "textbox", "slider", "combobox", "spinbutton", "link", "image", "table", "listbox",
    "option", "tree", "treeitem", "progressbar", "checkbox", "radio", "log", "navigation",
    "complementary", "searchbox", "switch",
}  # fmt: skip


def _open(browser: Browser, dashboard: str, path: str) -> None:
    browser.open(dashboard.rstrip("/") + path)
    browser.wait(lambda: browser.all("main .hr-title"), "the content")


def _nodes(browser: Browser) -> list[dict[str, Any]]:
    """The accessibility tree, as assistive software reads it."""
    browser.driver.execute_cdp_cmd("Accessibility.enable", {})
    found: list[dict[str, Any]] = browser.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})[
        "nodes"
    ]
    return [node for node in found if not node.get("ignored")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_has_a_name_and_can_be_read(
    browser: Browser, dashboard: str, page: Page
) -> None:
    _open(browser, dashboard, page.path)
    assert browser.driver.title == f"{page.title} · Headrace"
    nodes = _nodes(browser)
    nameless = [
        node["role"]["value"]
        for node in nodes
        if node.get("role", {}).get("value") in _NAMED
        and not node.get("name", {}).get("value", "").strip()
    ]
    assert not nameless
    told = [p["value"].get("value") for node in nodes for p in node.get("properties", ())
            if p["name"] == "valuetext" and node["role"]["value"] == "slider"]  # fmt: skip
    assert all(told), "a slider says a number without its meaning"
    for size in (DESKTOP, PHONE):
        for dark in (False, True):
            browser.look(size, dark)
            seen, low = browser.run(_CONTRAST)
            assert seen > 15
            assert not low, (size, dark, low)
    links = browser.all(".hr-nav a")
    assert all(link.rect["x"] >= 0 for link in links)
    assert max(link.rect["x"] + link.rect["width"] for link in links) <= PHONE[0]
    assert min(link.rect["height"] for link in links) >= 44
    browser.look(DESKTOP, dark=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_focus_is_seen_wherever_it_goes(browser: Browser, dashboard: str, page: Page) -> None:
    _open(browser, dashboard, page.path)
    stops = []
    for _ in range(60):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        tag, name, seen = browser.run(_FOCUS)
        if tag == "BODY":
            break
        assert seen, (page.name, tag, name)
        assert name, (page.name, tag)
        stops.append(name.split("\n")[-1])
    if page.name == "chat":  # it begins in its own field
        assert stops[0] == "New"
    else:
        assert stops[0] == "To the content"
        assert "Colours" in " ".join(stops)
