"""Prefix trees that can be read: tokens are letters, a tree is drawn as text (blocks of 4)."""

from __future__ import annotations

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.events import Listener
from headrace.engine.prefix.finding import Match
from headrace.engine.prefix.node import Node
from headrace.engine.prefix.tree import PrefixTree
from headrace.ops.kv import KVGroupSpec

BLOCK = 4
LENGTH = 64


def ids(text: str) -> list[int]:
    """Letters as tokens; blanks only show where blocks end."""
    return [ord(letter) for letter in text if letter != " "]


class Drawn:
    """A tree over pools of `num_blocks`; windows: of its groups, None = full."""

    def __init__(
        self, *windows: int | None, num_blocks: int = 32, on_event: Listener | None = None
    ) -> None:
        self.windows = windows or (None,)
        specs = [
            KVGroupSpec(str(g), (g,), 1, 1, 1, window=window)
            for g, window in enumerate(self.windows)
        ]
        self.manager = BlockManager(specs, [num_blocks] * len(specs), BLOCK, LENGTH)
        self.pool = self.manager.pools[0]
        self.tree = PrefixTree(self.manager, on_event)
        self.holders: list[SequenceBlocks] = []  # of whoever came, also after they closed theirs

    def start(self, text: str, salt: str = "") -> SequenceBlocks:
        """A sequence that takes what the tree has of `text` and computes the rest."""
        match = self.match(text, salt)
        blocks = self.share(match)
        self.manager.extend(blocks, match.num_stored, len(ids(text)) - match.num_stored)
        self.manager.take_copies()
        return blocks

    def share(self, match: Match) -> SequenceBlocks:
        blocks = self.tree.share(match)
        self.holders.append(blocks)
        return blocks

    def compute(self, text: str) -> SequenceBlocks:
        """A sequence that computes everything itself."""
        blocks = self.manager.open(LENGTH)
        assert blocks is not None
        self.holders.append(blocks)
        self.manager.extend(blocks, 0, len(ids(text)))
        return blocks

    def insert(self, text: str, blocks: SequenceBlocks, salt: str = "", entry: int = 0) -> int:
        tokens = ids(text)
        return self.tree.insert(tokens, blocks, len(tokens), salt=salt, entry_from=entry)

    def leave(self, text: str, salt: str = "", *, entry: int | None = None) -> None:
        """A sequence that comes, computes everything itself, and goes; enterable at its end."""
        blocks = self.compute(text)
        self.insert(text, blocks, salt, len(ids(text)) if entry is None else entry)
        self.manager.close(blocks)
        self.check()

    def match(self, text: str, salt: str = "") -> Match:
        return self.tree.match(ids(text), salt)

    def found(self, text: str, salt: str = "") -> tuple[int, int, int]:
        """(matched, stored, start)"""
        match = self.match(text, salt)
        return match.num_matched, match.num_stored, match.start

    def check(self) -> None:
        self.tree.check()
        self.manager.check(self.holders)

    def picture(self) -> list[str]:
        """A line for each node, children indented below it: pages, blocks of the full groups, and
        from where on it can be entered."""
        lines: list[tuple[str, str]] = []
        for salt, node in self.tree.nodes():
            path = "".join(_letters(above) for above in node.path())
            lines.append((salt + path, _line(node)))
        return [line for _, line in sorted(lines)]


def names(drawn: Drawn) -> list[str]:
    """The pages of the picture only."""
    return [line.split(":")[0].split(" @")[0].strip() for line in drawn.picture()]


def _letters(node: Node) -> str:
    return node.tokens[::4].decode()


def _line(node: Node) -> str:
    letters = _letters(node)
    pages = " ".join(letters[i : i + BLOCK] for i in range(0, len(letters), BLOCK))
    line = "  " * (len(node.path()) - 1) + pages
    if node.blocks:
        line += ": " + " ".join(map(str, node.blocks))
    if node.entry is not None:
        line += f" @{node.entry.oldest}"
    return line
