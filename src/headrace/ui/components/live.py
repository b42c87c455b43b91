"""Live: all that changes on a page in one tick, sent as one message.

The browser keeps the lines of the charts; only what is new is sent. See live.js.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui.element import Element

from headrace.ui.facts.watch import Point
from headrace.ui.feed import WINDOW_S


class Live(Element, component="live.js"):
    """Collects changes; `flush` sends them. What did not change since is not sent again."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[list[Any]] = []
        self._sent: dict[tuple[int, str], Any] = {}

    def rows(self, chart: Element, rows: Sequence[Point]) -> None:
        """Appends lines to a chart of `charts.over_time`."""
        if rows:
            self._parts.append([chart.id, "rows", rows, 1e3 * WINDOW_S])

    def forget(self, *chart: Element) -> None:
        """Empties charts."""
        self._parts += [[one.id, "rows", [], 0] for one in chart]

    def options(self, chart: Element, options: dict[str, Any]) -> None:
        """Merges options into a chart's."""
        self._once(chart, "options", options)

    def put(self, element: Element, value: Any) -> None:
        """Calls `put(value)` of an element in the browser."""
        self._once(element, "put", value)

    def flush(self) -> bool:
        """Whether there was something to send."""
        parts, self._parts = self._parts, []
        if parts:
            self.run_method("take", parts)
        return bool(parts)

    def _once(self, element: Element, what: str, value: Any) -> None:
        if self._sent.get((element.id, what)) != value:
            self._sent[element.id, what] = value
            self._parts.append([element.id, what, value])
