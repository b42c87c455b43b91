"""Prose: a model's Markdown as HTML that is safe by construction. Pure.

Everything is escaped first; the only tags are those written here. There are no images, no raw HTML
and no links but http, https and mailto. Takes time linear in the text, whatever it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import escape

#: Longest piece of emphasis, code or link on one line; longer ones stay as they were written.
_SPAN = 400
_INLINE = re.compile(
    rf"`(?P<code>[^`\n]{{1,{_SPAN}}})`"
    rf"|\*\*(?P<strong>[^*\n]{{1,{_SPAN}}})\*\*"
    rf"|(?<![\w*])\*(?P<em>[^*\s][^*\n]{{0,{_SPAN}}})\*(?![\w*])"
    rf"|!\[(?P<alt>[^\]\n]{{0,{_SPAN}}})\]\((?P<image>[^)\s]{{0,{_SPAN}}})[^)\n]{{0,{_SPAN}}}\)"
    rf"|\[(?P<text>[^\]\n]{{1,{_SPAN}}})\]\((?P<href>[^)\s]{{1,{_SPAN}}})\)"
)
_LINK = re.compile(r"(?:https?://|mailto:)[^\s\"'<>]+")
_HEADING = re.compile(r"(#{1,6}) (.*)")
_ITEM = re.compile(r"( {0,12})(?:([-*+])|(\d{1,9})[.)]) (.*)")
_RULE = re.compile(r" {0,3}(?:-{3,}|\*{3,}|_{3,}) *")
_TABLE_RULE = re.compile(r" {0,3}\|?(?: *:?-+:? *\|)+(?: *:?-+:?)? *")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def to_html(text: str) -> str:
    """HTML of a whole answer."""
    return "".join(_blocks(text.replace("\r\n", "\n").split("\n")))


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif fence := _FENCE.match(line):
            end = _end_of_code(lines, at + 1, fence[1])
            code = "\n".join(lines[at + 1 : end])
            yield f'<pre tabindex="0"><code>{escape(code)}</code></pre>'
            at = end + 1
        elif heading := _HEADING.match(line):
            level = min(len(heading[1]) + 2, 6)  # below the page's own
            yield f"<h{level}>{_inline(heading[2])}</h{level}>"
            at += 1
        elif _RULE.fullmatch(line):
            yield "<hr>"
            at += 1
        elif "|" in line and at + 1 < len(lines) and _TABLE_RULE.fullmatch(lines[at + 1]):
            end = _while(lines, at + 2, lambda row: "|" in row)
            yield _table([lines[at], *lines[at + 2 : end]])
            at = end
        elif _ITEM.match(line):
            end = _while(lines, at, lambda row: bool(_ITEM.match(row)) or row.startswith("  "))
            yield _list(lines[at:end])
            at = end
        elif line.startswith(">"):
            end = _while(lines, at, lambda row: row.startswith(">"))
            quoted = "<br>".join(_inline(row.lstrip("> ")) for row in lines[at:end])
            yield f"<blockquote>{quoted}</blockquote>"
            at = end
        else:
            end = max(_while(lines, at, _is_plain), at + 1)
            yield f"<p>{'<br>'.join(_inline(row) for row in lines[at:end])}</p>"
            at = end


def _is_plain(line: str) -> bool:
    return bool(line.strip()) and not (
        _FENCE.match(line) or _HEADING.match(line) or _ITEM.match(line) or line.startswith(">")
    )


def _while(lines: list[str], at: int, holds: Callable[[str], bool]) -> int:
    while at < len(lines) and lines[at].strip() and holds(lines[at]):
        at += 1
    return at


def _end_of_code(lines: list[str], at: int, fence: str) -> int:
    while at < len(lines) and not lines[at].strip().startswith(fence):
        at += 1
    return at


def _list(lines: list[str]) -> str:
    """Items of any depth; a line that is no item goes on with the one before."""
    html: list[str] = []
    open_lists: list[tuple[int, str]] = []  # indent, tag
    for line in lines:
        item = _ITEM.match(line)
        if item is None:
            html.append(f"<br>{_inline(line.strip())}")
            continue
        indent, tag = len(item[1]), "ul" if item[2] else "ol"
        while open_lists and indent < open_lists[-1][0]:
            html.append(f"</li></{open_lists.pop()[1]}>")
        if open_lists and indent < open_lists[-1][0] + 2:
            html.append("</li>")
        else:
            start = f' start="{int(item[3])}"' if item[3] else ""
            html.append(f"<{tag}{start}>")
            open_lists.append((indent, tag))
        html.append(f"<li>{_inline(item[4])}")
    html.extend(f"</li></{tag}>" for _, tag in reversed(open_lists))
    return "".join(html)


def _table(rows: list[str]) -> str:
    cells = [[_inline(cell.strip()) for cell in row.strip().strip("|").split("|")] for row in rows]
    head = "".join(f"<th>{cell}</th>" for cell in cells[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells[1:]
    )
    return f'<table class="hr-table"><tr>{head}</tr>{body}</table>'


def _inline(text: str) -> str:
    html: list[str] = []
    at = 0
    for match in _INLINE.finditer(text):
        html.append(escape(text[at : match.start()]))
        html.append(_span(match))
        at = match.end()
    html.append(escape(text[at:]))
    return "".join(html)


def _span(match: re.Match[str]) -> str:
    for name, tag in (("code", "code"), ("strong", "strong"), ("em", "em")):
        if match[name] is not None:
            return f"<{tag}>{escape(match[name])}</{tag}>"
    if match["image"] is not None:
        return f"<em>image: {escape(match['alt'] or match['image'])}</em>"
    if not _LINK.fullmatch(match["href"]):
        return escape(match[0])
    href, shown = escape(match["href"]), escape(match["text"])
    return f'<a href="{href}" target="_blank" rel="noopener noreferrer nofollow">{shown}</a>'
