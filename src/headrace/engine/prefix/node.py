"""Nodes of the prefix tree: runs of tokens with the blocks that hold their keys and values.

Tokens are kept as bytes, four per token, so that runs are compared by memcmp. A *page* is the
tokens of one block. A node's run starts at a block border; it ends at one, too, except that a
leaf's last page may be partly filled. Children are found by their first page, sorted: the child
with the longest common prefix with a query is next to where the query's page would be inserted.

Knows no pools, no reference counts, no clock.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

TOKEN_BYTES = 4


class Entry:
    """What the window groups need so that a sequence can go on from inside or the end of a node.

    For each window group (window w), in their order: blocks[k] are the blocks of the columns from
    first_columns[k] to the end of the node. Positions from `oldest` to the end of the node can be
    entered: a query at p ≥ oldest finds all of p − w + 1 … p − 1.

        B = 4, w = 6, the node ends at 22, oldest = 18
        column      3      4      5
        positions 12-15  16-19  20-21        a query at 18 sees 13 … 17
    """

    __slots__ = ("blocks", "first_columns", "last_used", "oldest")

    def __init__(
        self,
        oldest: int,
        first_columns: tuple[int, ...],
        blocks: tuple[array[int], ...],
        last_used: int,
    ) -> None:
        self.oldest = oldest
        self.first_columns = first_columns
        self.blocks = blocks
        self.last_used = last_used

    def columns(self, index: int, first: int, end: int) -> array[int]:
        """Blocks of columns [first, end) in the index-th window group."""
        shift = self.first_columns[index]
        return self.blocks[index][first - shift : end - shift]


class Node:
    """A run of tokens [start, end).

    tokens: four bytes per token. blocks: of the full groups, column by column: with two full groups
    a0 b0 a1 b1 …; keys, children: sorted by key, the bytes of the child's first page. hash: chained
    hash at the end of the last full page, computed when somebody asks. parent: None = this is a
    root, or the node was removed.
    """

    __slots__ = (
        "blocks",
        "children",
        "entry",
        "hash",
        "keys",
        "last_used",
        "parent",
        "start",
        "tokens",
    )

    def __init__(
        self, parent: Node | None, start: int, tokens: bytes, blocks: array[int], last_used: int
    ) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.blocks = blocks
        self.last_used = last_used
        self.keys: Sequence[bytes] = ()
        self.children: Sequence[Node] = ()
        self.entry: Entry | None = None
        self.hash: bytes | None = None

    def __lt__(self, other: Node) -> bool:
        """Order among equally old ones in a heap."""
        return self.start > other.start

    @property
    def end(self) -> int:
        return self.start + len(self.tokens) // TOKEN_BYTES

    def add(self, key: bytes, child: Node) -> None:
        """Makes `child` the child with this key."""
        if not self.children:
            self.keys, self.children = [key], [child]
            return
        assert isinstance(self.keys, list)
        assert isinstance(self.children, list)
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.children.insert(index, child)

    def replace(self, key: bytes, child: Node) -> None:
        """Puts `child` in the place of the child with this key."""
        assert isinstance(self.children, list)
        index = bisect_left(self.keys, key)
        assert self.keys[index] == key
        self.children[index] = child

    def remove(self, key: bytes) -> None:
        """Forgets the child with this key."""
        assert isinstance(self.keys, list)
        assert isinstance(self.children, list)
        index = bisect_left(self.keys, key)
        assert self.keys[index] == key
        if len(self.keys) == 1:
            self.keys = self.children = ()
            return
        del self.keys[index], self.children[index]

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class Root(Node):
    """What the nodes of a salt are below."""

    __slots__ = ("salt",)

    def __init__(self, salt: str, last_used: int) -> None:
        super().__init__(None, 0, b"", array("i"), last_used)
        self.salt = salt


def to_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as four bytes each."""
    return array("i", tokens).tobytes()


def common_bytes(a: bytes, offset: int, b: bytes) -> int:
    """Length in bytes of the longest common prefix, in whole tokens, of a from offset on and b."""
    count = min(len(a) - offset, len(b)) // TOKEN_BYTES
    differs = np.frombuffer(a, np.int32, count, offset) != np.frombuffer(b, np.int32, count)
    where = int(differs.argmax()) if count else 0
    return TOKEN_BYTES * (where if count and differs[where] else count)


def walk(root: Node) -> Iterator[Node]:
    """All nodes below a root, parents before children."""
    pending = list(root.children)
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.children)
