"""Charts on a page: SVG, whose colours are the page's variables, with a name in words."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.ui.facts import charts


def chart(options: dict[str, Any], words: str) -> ui.echart:
    """words: what it shows; `show` replaces them with what it says then."""
    element = ui.echart(charts.described(options, words), renderer="svg").classes("hr-chart")
    element.props.update({"role": "img", "aria-label": words})  # also while it is empty
    return element


def show(element: ui.echart, options: dict[str, Any], words: str) -> None:
    """Other options in place of those before."""
    element.options.clear()
    element.options.update(charts.described(options, words))
    element.update()
