"""A model's Markdown as HTML: what it may say, how it looks, and that it never takes long."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ui.facts.prose import to_html

TAGS = {"p", "br", "h3", "h4", "h5", "h6", "ul", "ol", "li", "pre", "code", "strong", "em", "a",
        "blockquote", "hr", "table", "tr", "th", "td"}  # fmt: skip
ATTRIBUTES = {"a": {"href", "target", "rel"}, "ol": {"start"}, "pre": {"tabindex"},
              "table": {"class"}}  # fmt: skip


class _Reader(HTMLParser):
    """Tags and links as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.depth: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        assert {name for name, _ in attrs} <= ATTRIBUTES.get(tag, set())
        for name, value in attrs:
            if name == "href":
                assert re.match(r"(https?://|mailto:)", value or "")
        if tag not in ("br", "hr"):
            self.depth.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.depth.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)


def _read(text: str) -> str:
    reader = _Reader()
    reader.feed(to_html(text))
    reader.close()
    assert not reader.depth
    return "".join(reader.text)


_PIECES = st.sampled_from(
    ["<script>", "</p>", "<img src=x onerror=a>", "[a](http://b.c/\"'>)", "![a](http://b)", "`",
     "```", "~~~", "**", "*", "#", "- ", "1. ", "  - ", "> ", "|", "---", "\n", "\n\n", "&lt;",
     "[x](javascript:a)", "[x](data:text/html,y)", "<!--", "-->", "\x00", " word ", "é", "|---|"]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(_PIECES | st.text(max_size=5), max_size=40))
def test_only_known_tags_well_nested(pieces: list[str]) -> None:
    _read("".join(pieces))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a **b** *c* `d<e`", "<p>a <strong>b</strong> <em>c</em> <code>d&lt;e</code></p>"),
        ("# T\ntext", "<h3>T</h3><p>text</p>"),
        ("- a\n- b\n  - c\n- d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li><li>d</li></ul>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("```py\n<x>\n```", '<pre tabindex="0"><code>&lt;x&gt;</code></pre>'),
        ("2 * 3 * 4", "<p>2 * 3 * 4</p>"),
        ("[a](https://b.c)", '<p><a href="https://b.c" target="_blank" '
         'rel="noopener noreferrer nofollow">a</a></p>'),
        ("[a](javascript:b)", "<p>[a](javascript:b)</p>"),
        ("![cat](http://b/c.png)", "<p><em>image: cat</em></p>"),
        ("a|b\n-|-\n1|2", '<table class="hr-table"><tr><th>a</th><th>b</th></tr>'
         "<tr><td>1</td><td>2</td></tr></table>"),
    ],
)  # fmt: skip
def test_forms(text: str, html: str) -> None:
    assert to_html(text) == html


@pytest.mark.parametrize("piece", ["[", "*a", "`", "**", "![", "[a](", "- ", "  " * 9 + "- x\n",
                                   "|-", "> ", "~~~\n", "#", "1. "])  # fmt: skip
@pytest.mark.timeout(60)
def test_long_hostile_text_does_not_hang(piece: str) -> None:
    """Patterns that search from every place to the end would take minutes."""
    assert to_html(piece * 20_000)
