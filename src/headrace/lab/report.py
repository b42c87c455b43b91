"""All results of a directory as one self-contained HTML page: no script and no request."""

from __future__ import annotations

import base64
import re
from html import escape
from pathlib import Path
from typing import Any

from headrace.errors import ModelFileError, UsageError
from headrace.formats.files import read_small_file, shorten
from headrace.lab.catalog import EXPERIMENTS
from headrace.lab.findings_page import (
    PREDICTION_COLUMNS,
    cell,
    checks_title,
    conditions_line,
    intervals_told,
    prediction_cells,
)
from headrace.lab.result import FILE, Result, read_result

#: A figure is a few hundred kilobytes at most.
_MOST_IMAGE_BYTES = 4 << 20
#: An experiment draws a few; a page of hundreds opens nowhere.
_MOST_FIGURES = 32
_FIGURE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,80}\.png")
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --soft: #f3f4f6; --line: #d5d9de;
  --good: #00614a; --bad: #a33a00; --open: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #16191d; --soft: #22262c;
  --line: #3a4048; --good: #5fd3ae; --bad: #ffa066; --open: #a7b0ba; } img { background: #fff; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.7rem; } h2 { margin-top: 3rem; border-top: 1px solid var(--line);
  padding-top: 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; margin: .6rem 0; }
th, td { text-align: left; padding: .3rem .7rem; border-bottom: 1px solid var(--line);
  vertical-align: top; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
img { max-width: 100%; height: auto; border-radius: 4px; } figure { margin: 1rem 0; }
figcaption, .small { font-size: .88rem; color: var(--open); }
.v-holds { color: var(--good); font-weight: 600; }
.v-refuted { color: var(--bad); font-weight: 600; }
.v-open { color: var(--open); font-weight: 600; }
code { background: var(--soft); padding: 0 .25rem; }
"""
_CLASSES = {"holds": "v-holds", "refuted": "v-refuted"}


def report(directory: Path) -> str:
    """The page. Raises UsageError where there is no result."""
    results = find_results(directory)
    if not results:
        raise UsageError(
            f"{directory} holds no results; `headrace lab run all --quick --out {directory}` "
            f"makes them."
        )
    try:
        body = [_summary(results)]
        body += [_section(result, directory / result.name) for result in results]
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError,
            RecursionError) as error:  # fmt: skip
        raise UsageError(
            f"A {FILE} below {directory} is damaged ({type(error).__name__}: {error}); run the "
            "experiments again."
        ) from None
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>Headrace lab</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def find_results(directory: Path) -> list[Result]:
    """Of every experiment that has one, in the catalogue's order."""
    found = []
    for name in EXPERIMENTS:
        if (directory / name / FILE).exists():
            result = read_result(directory / name)
            if result.name != name:
                raise UsageError(
                    f"{directory / name / FILE} is a result of another experiment, "
                    f"{shorten(result.name)}; run {name} again."
                )
            found.append(result)
    return found


def _summary(results: list[Result]) -> str:
    rows = []
    for result in results:
        verdicts = [p["verdict"] for p in result.data["predictions"]]
        counts = ", ".join(
            f"{verdicts.count(v)} {v}"
            for v in ("holds", "refuted", "not resolved", "not measured")
            if v in verdicts
        )
        state = "yes" if result.passed else "NO"
        rows.append(
            f'<tr><td><a href="#{escape(result.name)}">{escape(result.data["title"])}</a></td>'
            f"<td>{state}</td><td>{escape(counts)}</td>"
            f'<td class="n">{result.data["seconds"]:.0f}</td></tr>'
        )
    return (
        "<h1>Headrace lab</h1>\n<p>Each claim was predicted from the model's own program, then "
        "checked, then measured on this machine. A verdict is given only where the whole interval "
        'of the measurement allows it.</p>\n<div class="scroll"><table><thead><tr><th>experiment'
        "</th><th>checks hold</th><th>predictions</th><th>seconds</th></tr></thead><tbody>"
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _section(result: Result, directory: Path) -> str:
    data = result.data
    parts = [
        f'<h2 id="{escape(result.name)}">{escape(data["title"])}</h2>',
        f"<p><b>Question.</b> {_text(data['question'])}</p>",
        f"<p><b>What is taught.</b> {_text(data['claim'])}</p>",
        _table(
            checks_title(data),
            ["check", "holds", "figures"],
            [[c["name"], "yes" if c["passed"] else "NO", c["detail"]] for c in data["checks"]],
        ),
    ]
    if data["passed"]:
        parts += [_predictions(data), _conclusions(data)]
        if len(data["figures"]) > _MOST_FIGURES:
            raise ValueError(f"{len(data['figures'])} figures")
        parts += [_figure(figure, directory) for figure in data["figures"]]
        parts += [_table(t["name"], t["columns"], t["rows"], t["note"]) for t in data["tables"]]
        parts += [f'<p class="small">{_text(note)}</p>' for note in data["notes"]]
    parts.append(_conditions(data))
    if data["try_this"]:
        items = "".join(f"<li>{_text(line)}</li>" for line in data["try_this"])
        parts.append(f"<p><b>Try this next</b></p><ul>{items}</ul>")
    return "\n".join(parts)


def _predictions(data: dict[str, Any]) -> str:
    rows = []
    for p in data["predictions"]:
        verdict = f'<td class="{_CLASSES.get(p["verdict"], "v-open")}">{escape(p["verdict"])}</td>'
        *before, _, how = (f"<td>{_text(text)}</td>" for text in prediction_cells(p))
        rows.append(f"<tr>{''.join(before)}{verdict}{how}</tr>")
    if not rows:
        return ""
    table = _wrap("Predicted, then measured", PREDICTION_COLUMNS, rows)
    return f'{table}<p class="small">{_text(intervals_told(data["predictions"]))}</p>'


def _conclusions(data: dict[str, Any]) -> str:
    items = "".join(
        f"<li>{'' if c['resolved'] else '<b>Not resolved:</b> '}{_text(c['text'])}</li>"
        for c in data["conclusions"]
    )
    return f"<p><b>Conclusions</b></p><ul>{items}</ul>" if items else ""


def _figure(figure: dict[str, Any], directory: Path) -> str:
    """The PNG inside the page; only one that lies in the run's own directory."""
    if not _FIGURE.fullmatch(figure["file"]):
        raise ValueError("a figure's file name")
    path = directory / figure["file"]
    try:
        image = read_small_file(path, _MOST_IMAGE_BYTES)
    except ModelFileError as error:
        raise UsageError(f"{error} Run the experiment again.") from None
    if not image.startswith(b"\x89PNG"):
        raise UsageError(f"{path} is no PNG of a usual size; run the experiment again.")
    coded = base64.b64encode(image).decode("ascii")
    return (
        f'<figure><img src="data:image/png;base64,{coded}" alt="{escape(figure["alt"])}">'
        f"<figcaption>{_text(figure['caption'])}</figcaption></figure>"
    )


def _table(name: str, columns: list[str], rows: list[list[Any]], note: str = "") -> str:
    lines = [
        "<tr>" + "".join(
            # cell() escapes bars for Markdown's tables; HTML shows a text as it is
            f"<td>{_text(v)}</td>" if isinstance(v, str) else f"<td class=n>{_text(cell(v))}</td>"
            for v in row
        ) + "</tr>"
        for row in rows
    ]  # fmt: skip
    after = f'<p class="small">{_text(note)}</p>' if note else ""
    return _wrap(name, columns, lines) + after


def _wrap(name: str, columns: Any, rows: list[str]) -> str:
    heads = "".join(f"<th>{escape(str(column))}</th>" for column in columns)
    return (
        f'<div class="scroll"><table><caption>{escape(name)}</caption><thead><tr>{heads}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _conditions(data: dict[str, Any]) -> str:
    return f'<p class="small"><b>Conditions.</b> {_text(conditions_line(data))}</p>'


def _text(text: str) -> str:
    """Escaped, with `code` kept as code."""
    pieces = escape(str(text)).split("`")
    if len(pieces) % 2 == 0:
        return "`".join(pieces)
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))
