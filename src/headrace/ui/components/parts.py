"""Parts of live pages: figures with names, a table, the map of blocks, the prefix tree.

Each is drawn in the browser from what `Live.put` sends; see the .js files beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui
from nicegui.element import Element


class Tiles(Element, component="tiles.js"):
    """names: (name, what it means). put: a text each, in this order."""

    def __init__(self, names: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._props["names"] = [list(name) for name in names]


@dataclass(frozen=True, slots=True)
class Span:
    """Figures that are of one span of time, below its name."""

    title: ui.label
    tiles: Tiles


def span(title: str, names: Sequence[tuple[str, str]]) -> Span:
    """Builds one."""
    with ui.element("div").classes("hr-span").style(f"--hr-many: {len(names)}"):
        return Span(ui.label(title).classes("hr-soft"), Tiles(names))


class Sheet(Element, component="sheet.js"):
    """A table. left: columns that are no numbers. none: shown without rows. width: below it, px,
    the table scrolls. put: a list of texts per row."""

    def __init__(
        self,
        caption: str,
        columns: Sequence[str],
        none: str = "none",
        left: Sequence[int] = (0,),
        width: int = 0,
    ) -> None:
        super().__init__()
        self._props["caption"] = caption
        self._props["columns"] = list(columns)
        self._props["none"] = none
        self._props["left"] = list(left)
        self._props["width"] = f"{width or 70 * len(columns)}px"

    def start(self, rows: Sequence[Sequence[str]]) -> Sheet:
        """The rows to begin with, for a table that changes seldom or never."""
        self._props["start"] = [list(row) for row in rows]
        return self

    def show(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]
    ) -> None:
        """Other columns and rows."""
        self._props["columns"] = list(columns)
        self._props["left"] = list(left)
        self._props["width"] = f"{70 * len(columns)}px"
        self.start(rows)


class Blocks(Element, component="blocks.js"):
    """put: one letter per cell, as /kv_map has them."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._props["label"] = label


class Tree(Element, component="tree.js"):
    """put: what `tree_nodes` returns."""

    def __init__(self, label: str) -> None:
        super().__init__()
        self._props["label"] = label


def tree_nodes(listed: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """/prefix_tree's list, short."""
    return [
        [
            node["parent"],
            node["start"],
            node["tokens"],
            node["children"],
            node["holders"],
            node["salt"] is not None,
        ]
        for node in listed
    ]
