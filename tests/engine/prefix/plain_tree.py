"""The prefix tree once more, as a dict of pages: slow, obvious, without nodes, splits or heaps.

A page is the tokens of one block; its key is (salt, everything up to its end), so that a page is
there exactly when its key is. What the real tree must hold after an insertion and find for a prompt
follows from the keys alone; only what an eviction takes is read back (machine.py judges it).
Tokens are below 256, so that a prefix is a `bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.engine.blocks import SequenceBlocks
from headrace.engine.prefix.tree import PrefixTree

Key = tuple[str, bytes]
_NOTHING_UNWRITTEN = 1 << 30


@dataclass
class PlainTree:
    """pages: key → its block in every full group. oldest: key → from where on its positions can be
    entered, of pages of which some can (window groups only). unwritten: keys."""

    block_size: int
    windows: Sequence[int | None]
    pages: dict[Key, tuple[int, ...]] = field(default_factory=dict)
    oldest: dict[Key, int] = field(default_factory=dict)
    unwritten: set[Key] = field(default_factory=set)
    _following: dict[Key, set[Key]] = field(default_factory=dict)  # prefix of full pages → pages

    @property
    def is_windowed(self) -> bool:
        return any(window is not None for window in self.windows)

    def insert(
        self,
        tokens: bytes,
        blocks: SequenceBlocks,
        num_positions: int,
        salt: str,
        entry: int | None,
        first_unwritten: int = _NOTHING_UNWRITTEN,
    ) -> int:
        """Like PrefixTree.insert, or promise of whole blocks; returns the same."""
        entered = self._entered(blocks, entry, num_positions)
        if num_positions == 0 or entered > num_positions:
            return 0
        size, added = self.block_size, 0
        for start in range(0, num_positions, size):
            end = min(start + size, num_positions)
            key = (salt, tokens[:end])
            is_new = key not in self.pages
            if is_new:
                page, others = tokens[start:end], self.siblings(salt, tokens[:start])
                if any(other.startswith(page) for other in others):
                    break  # the beginning of a page that is there
                for other in others:
                    if page.startswith(other):
                        self._drop((salt, tokens[:start] + other))
                        added -= len(other)
                self._add(
                    key,
                    tuple(
                        blocks.views[group][start // size]
                        for group, window in enumerate(self.windows)
                        if window is None
                    ),
                )
                added += end - start
            if self.is_windowed and end >= entered and entered < self.oldest.get(key, end + 1):
                self.oldest[key] = entered
                is_new = True
            if is_new and end > first_unwritten // size * size:
                self.unwritten.add(key)
        return added

    def _add(self, key: Key, blocks: tuple[int, ...]) -> None:
        self.pages[key] = blocks
        self._following.setdefault(self._before(key), set()).add(key)

    def _drop(self, key: Key) -> None:
        del self.pages[key]
        self.oldest.pop(key, None)
        self._following[self._before(key)].remove(key)

    def _before(self, key: Key) -> Key:
        salt, tokens = key
        return salt, tokens[: (len(tokens) - 1) // self.block_size * self.block_size]

    def siblings(self, salt: str, before: bytes) -> list[bytes]:
        """Pages that follow a prefix of full pages."""
        return [key[len(before) :] for _, key in self._following.get((salt, before), ())]

    def _entered(self, blocks: SequenceBlocks, entry: int | None, num_positions: int) -> int:
        if not self.is_windowed:
            return 0
        if entry is None:
            return num_positions + 1
        limits = [
            blocks.first_columns[group] * self.block_size + window - 1
            for group, window in enumerate(self.windows)
            if window is not None and blocks.first_columns[group]
        ]
        return max([entry, *limits])

    def match(self, tokens: bytes, salt: str) -> tuple[int, list[int]]:
        """Longest common prefix, and for each page that has it, how many positions may be used by
        way of that page: the real tree does not look at all of many."""
        size = self.block_size
        whole = 0
        while whole + size <= len(tokens) and (salt, tokens[: whole + size]) in self.pages:
            whole += size
        rest = tokens[whole : whole + size]
        common = {page: common_prefix(page, rest) for page in self.siblings(salt, tokens[:whole])}
        best = max(common.values(), default=0)
        ends = [tokens[:whole] + page for page, length in common.items() if length == best > 0]
        return whole + best, [
            self._usable(tokens, salt, end, whole + best) for end in ends or [tokens[:whole]]
        ]

    def _usable(self, tokens: bytes, salt: str, end: bytes, matched: int) -> int:
        """The last position to go on from, by way of the page that ends with `end`."""
        size = self.block_size
        whole = matched // size * size
        if matched < len(end) and (salt, end) in self.unwritten:
            matched = whole
        if not self.is_windowed:
            return matched
        for position in range(matched, 0, -1):
            top = -(-position // size) * size
            oldest = self.oldest.get((salt, tokens[:top] if top <= whole else end))
            if oldest is not None and oldest <= min(position, len(tokens) - 1):
                return position
        return 0

    def read_back(self, tree: PrefixTree) -> None:
        """Takes over what the real tree holds."""
        pages, self.oldest = flatten(tree, self.block_size, self.windows)
        self.pages, self._following = {}, {}
        for key, blocks in pages.items():
            self._add(key, blocks)
        self.unwritten &= pages.keys()


def flatten(
    tree: PrefixTree, size: int, windows: Sequence[int | None]
) -> tuple[dict[Key, tuple[int, ...]], dict[Key, int]]:
    """Pages and enterable pages of a real tree."""
    stride = sum(window is None for window in windows)
    pages: dict[Key, tuple[int, ...]] = {}
    oldest: dict[Key, int] = {}
    for salt, node in tree.nodes():
        tokens = b"".join(above.tokens for above in node.path())[::4]
        for column, start in enumerate(range(node.start, node.end, size)):
            key = (salt, tokens[: min(start + size, node.end)])
            assert key not in pages, "a page twice"
            pages[key] = tuple(node.blocks[column * stride : (column + 1) * stride])
            if node.entry is not None and node.entry.oldest <= len(key[1]):
                oldest[key] = node.entry.oldest
    return pages, oldest


def common_prefix(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix."""
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
