"""Parts of live pages: figures with names, a table, the map of blocks, the prefix tree.

Each is drawn in the browser from what `Live.put` sends; see the .js files beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui.element import Element


class Tiles(Element, component="tiles.js"):
    """names: (name, what it means). put: a text each, in this order."""

    def __init__(self, names: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._props["names"] = [list(name) for name in names]


class Sheet(Element, component="sheet.js"):
    """A table. num_texts: columns that are no numbers; they come first. none: shown without rows.
    put: a list of texts per row."""

    def __init__(
        self, caption: str, columns: Sequence[str], none: str = "none", num_texts: int = 1
    ) -> None:
        super().__init__()
        self._props["caption"] = caption
        self._props["columns"] = list(columns)
        self._props["none"] = none
        self._props["numbers"] = num_texts


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
