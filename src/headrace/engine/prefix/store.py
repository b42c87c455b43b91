"""Store of the prefix tree: what it holds, and the few ways in which that changes.

Every change of the tree goes through one of these methods, so that here alone block references,
counts, the queues of what may be evicted, and events are kept in step:

    append   a leaf's run grows at its end          cut      a leaf's run loses its last columns
    add      a new leaf                             remove   a leaf goes, with parents it leaves
    split    one node becomes two, one below        enter    a node gets an entry
             the other                              close    a node loses its entry

Invariants (`check` in inspection.py): inner nodes end at block borders; no page among siblings is a
prefix of another; where there are window groups, every leaf has an entry, and a node with neither
an entry nor two children is joined with its child.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Listener,
    chain,
    first_hash,
)
from headrace.engine.prefix.node import TOKEN_BYTES, Entry, Node, Root, walk
from headrace.engine.sizing import ceil_div


class AgeQueue:
    """Nodes by last use, oldest first. Lazy: a node used since it was put in is moved when it comes
    up, and one that does not belong here any more is dropped then.

    age: the last use of a node that belongs here, None of one that does not.
    """

    __slots__ = ("_age", "_heap")

    def __init__(self, age: Callable[[Node], int | None]) -> None:
        self._age = age
        self._heap: list[tuple[int, Node]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, node: Node) -> None:
        age = self._age(node)
        assert age is not None
        heapq.heappush(self._heap, (age, node))

    def pop(self, newest: int) -> Node | None:
        """The least recently used node, taken out; None when all were used after `newest`."""
        heap = self._heap
        while heap and heap[0][0] <= newest:
            pushed, node = heap[0]
            age = self._age(node)
            if age is None:
                heapq.heappop(heap)
            elif age > pushed:
                heapq.heapreplace(heap, (age, node))
            else:
                heapq.heappop(heap)
                return node
        return None

    def shrink(self, num_live: int) -> None:
        """Drops what does not belong here, when that may be most of it."""
        if len(self._heap) <= 2 * num_live + 64:
            return
        ages = {node: self._age(node) for _, node in self._heap}
        self._heap = [(age, node) for node, age in ages.items() if age is not None]
        heapq.heapify(self._heap)

    def nodes(self) -> set[Node]:
        """Everything in the queue (for checks)."""
        return {node for _, node in self._heap}

    def num_bytes_of(self, size: Callable[[object], int]) -> int:
        """Memory of the queue itself."""
        return size(self._heap) + sum(size(item) for item in self._heap)


def _leaf_age(node: Node) -> int | None:
    return None if node.children or node.parent is None else node.last_used


def _entry_age(node: Node) -> int | None:
    return None if node.entry is None or node.parent is None else node.entry.last_used


class NodeStore:
    """The nodes of all salts, the blocks they hold, and what may be evicted.

    full_groups, window_groups: indices of the manager's groups. tick: a counter that stands for
    time. version: grows with every change. unwritten: (group, block) that the step being scheduled
    will write.
    """

    def __init__(self, manager: BlockManager, on_event: Listener | None) -> None:
        self.manager = manager
        self.on_event = on_event
        self.block_size = manager.block_size
        self.page_bytes = manager.block_size * TOKEN_BYTES
        windows = manager.windows
        self.full_groups = [g for g, window in enumerate(windows) if window is None]
        self.window_groups = [g for g, window in enumerate(windows) if window is not None]
        self.windows = [window for window in windows if window is not None]
        self.roots: dict[str, Root] = {}
        self.leaves = AgeQueue(_leaf_age)
        self.entries = AgeQueue(_entry_age)
        self.unwritten: set[tuple[int, int]] = set()
        self.tick = 0
        self.version = 0
        self.num_tokens = 0
        self.num_nodes = 0

    def root(self, salt: str) -> Root:
        """The root of a salt, made when it is not there."""
        root = self.roots.get(salt)
        if root is None:
            root = Root(salt, self.tick)
            root.hash = first_hash(salt)
            self.roots[salt] = root
        return root

    # ---- runs ---------------------------------------------------------------------------------

    def add(self, parent: Node, run: bytes, source: SequenceBlocks, first_unwritten: int) -> Node:
        """A new leaf with this run; takes references on the source's blocks of its columns."""
        leaf = Node(parent, parent.end, b"", array("i"), self.tick)
        self.num_nodes += 1
        self.append(leaf, run, source, first_unwritten)
        parent.add(run[: self.page_bytes], leaf)
        self.leaves.push(leaf)
        return leaf

    def append(self, leaf: Node, run: bytes, source: SequenceBlocks, first_unwritten: int) -> None:
        """Lengthens a leaf that ends at a block border."""
        first = leaf.end // self.block_size
        before = self.hash_of(leaf) if self.on_event else b""
        leaf.tokens += run
        self.num_tokens += len(run) // TOKEN_BYTES
        end = ceil_div(leaf.end, self.block_size)
        self._hold(leaf.blocks, source, first, end, first_unwritten)
        leaf.hash = None
        self.version += 1
        if self.on_event:
            self._tell_stored(leaf, run, before)

    def _hold(
        self, held: array[int], source: SequenceBlocks, first: int, end: int, first_unwritten: int
    ) -> None:
        """References on the source's columns [first, end) of the full groups, appended to held."""
        groups = [(g, source.views[g], self.manager.pools[g]) for g in self.full_groups]
        for column in range(first, end):
            for group, table, pool in groups:
                block = table[column]
                pool.share_with_tree(block)
                held.append(block)
                if column >= first_unwritten:
                    self.unwritten.add((group, block))

    def split(self, node: Node, position: int) -> Node:
        """Cuts a node in two at a block border inside it. Returns the upper one, which is new; it
        gets the part of the entry that still covers its end, if it does."""
        parent = node.parent
        assert parent is not None
        assert node.start < position < node.end
        size = (position - node.start) * TOKEN_BYTES
        columns = (position - node.start) // self.block_size
        num_blocks = columns * len(self.full_groups)
        upper = Node(parent, node.start, node.tokens[:size], node.blocks[:num_blocks], self.tick)
        upper.last_used = node.last_used
        parent.replace(node.tokens[: self.page_bytes], upper)
        node.parent, node.start = upper, position
        node.tokens, node.blocks = node.tokens[size:], node.blocks[num_blocks:]
        upper.add(node.tokens[: self.page_bytes], node)
        self.num_nodes += 1
        self.version += 1
        if node.entry is not None and node.entry.oldest <= position:
            self._enter(upper, self._part(node.entry, node.entry.oldest, position))
        return upper

    def cut(self, leaf: Node, position: int) -> None:
        """Takes a leaf's run off from a block border inside it; its entry goes on as far as it
        covers the new end."""
        assert leaf.start < position < leaf.end
        assert not leaf.children
        size = (position - leaf.start) * TOKEN_BYTES
        num_blocks = (position - leaf.start) // self.block_size * len(self.full_groups)
        if self.on_event:
            self._tell_removed(leaf, size)
        if leaf.entry is not None:
            entry = leaf.entry
            if entry.oldest <= position:
                self._enter(leaf, self._part(entry, entry.oldest, position))
            else:
                self._close(leaf)
        self._release(leaf.blocks[num_blocks:])
        del leaf.blocks[num_blocks:]
        self.num_tokens -= (len(leaf.tokens) - size) // TOKEN_BYTES
        leaf.tokens = leaf.tokens[:size]
        leaf.hash = None
        self.version += 1

    def remove(self, leaf: Node, *, tidy: bool = True) -> None:
        """Takes a leaf out. tidy: also parents that cannot be entered any more."""
        parent = leaf.parent
        assert parent is not None
        assert not leaf.children
        if self.on_event:
            self._tell_removed(leaf, 0)
        if leaf.entry is not None:
            self._close(leaf)
        parent.remove(leaf.tokens[: self.page_bytes])
        self._release(leaf.blocks)
        self.num_tokens -= len(leaf.tokens) // TOKEN_BYTES
        self.num_nodes -= 1
        self.version += 1
        leaf.parent = None
        if not parent.children and parent.parent is not None:
            self.leaves.push(parent)
        if tidy:
            self._tidy(parent)

    def remove_below(self, top: Node) -> None:
        """Takes a node out with all that is below it."""
        for node in reversed([top, *walk(top)]):
            if node.parent is not None:
                self.remove(node, tidy=node is top)

    def _tidy(self, node: Node) -> None:
        """After a node lost a child or its entry: it may be of no use any more."""
        if isinstance(node, Root):
            if not node.children:
                del self.roots[node.salt]
        elif self.window_groups and node.entry is None:
            if not node.children:
                self.remove(node)
            elif len(node.children) == 1:
                self._join(node)

    def _join(self, node: Node) -> None:
        """Puts a node in front of its only child."""
        parent, child = node.parent, node.children[0]
        assert parent is not None
        parent.replace(node.tokens[: self.page_bytes], child)
        child.parent, child.start = parent, node.start
        child.tokens, child.blocks = node.tokens + child.tokens, node.blocks + child.blocks
        node.parent, node.children, node.keys = None, (), ()
        self.num_nodes -= 1
        self.version += 1

    def _release(self, blocks: Sequence[int]) -> None:
        """References on blocks of the full groups, last ones first."""
        pools = [self.manager.pools[g] for g in self.full_groups]
        for index in range(len(blocks) - 1, -1, -1):
            pools[index % len(pools)].release_from_tree(blocks[index])

    def clear(self) -> None:
        """Gives up everything."""
        for root in self.roots.values():
            for node in walk(root):
                if node.entry is not None:
                    self._close(node)
                self._release(node.blocks)
        self.roots = {}
        self.leaves, self.entries = AgeQueue(_leaf_age), AgeQueue(_entry_age)
        self.unwritten.clear()
        self.num_tokens = self.num_nodes = 0
        self.version += 1
        if self.on_event:
            self.on_event(AllBlocksCleared())

    # ---- entries ------------------------------------------------------------------------------

    def enter(self, node: Node, oldest: int, source: SequenceBlocks, first_unwritten: int) -> None:
        """Makes [oldest, node.end] enterable with the source's window blocks, unless it is."""
        entry = node.entry
        if entry is not None and entry.oldest <= oldest:
            entry.last_used = self.tick
            return
        end = ceil_div(node.end, self.block_size)
        firsts, held = [], []
        for group, window in zip(self.window_groups, self.windows, strict=True):
            first = max(0, oldest - window + 1) // self.block_size
            blocks = array("i", source.views[group][first:end])
            firsts.append(first)
            held.append(blocks)
            if end > first_unwritten:
                new = blocks[max(first_unwritten - first, 0) :]
                self.unwritten.update((group, block) for block in new)
        self._enter(node, Entry(oldest, tuple(firsts), tuple(held), self.tick))

    def narrow(self, node: Node, oldest: int) -> None:
        """Gives up the oldest blocks of a node's entry, so that only [oldest, end] is enterable."""
        assert node.entry is not None
        self._enter(node, self._part(node.entry, oldest, node.end))

    def close(self, node: Node) -> None:
        """Gives up a node's entry, and the nodes that cannot be entered any more without it."""
        if not node.children:
            self.remove(node)
            return
        self._close(node)
        self._tidy(node)

    def _part(self, entry: Entry, oldest: int, end: int) -> Entry:
        """The part of an entry that lets [oldest, end] be entered."""
        columns = ceil_div(end, self.block_size)
        firsts = tuple(max(0, oldest - window + 1) // self.block_size for window in self.windows)
        blocks = tuple(entry.columns(k, first, columns) for k, first in enumerate(firsts))
        return Entry(oldest, firsts, blocks, entry.last_used)

    def _enter(self, node: Node, entry: Entry) -> None:
        for group, blocks in zip(self.window_groups, entry.blocks, strict=True):
            for block in blocks:
                self.manager.pools[group].share_with_tree(block)
        if node.entry is not None:
            self._close(node)
        node.entry = entry
        self.entries.push(node)
        self.version += 1

    def _close(self, node: Node) -> None:
        assert node.entry is not None
        for group, blocks in zip(self.window_groups, node.entry.blocks, strict=True):
            for block in reversed(blocks):
                self.manager.pools[group].release_from_tree(block)
        node.entry = None
        self.version += 1

    # ---- events -------------------------------------------------------------------------------

    def hash_of(self, node: Node) -> bytes:
        """Chained hash at the end of a node's last full page."""
        pending = []
        while node.hash is None:
            pending.append(node)
            assert node.parent is not None
            node = node.parent
        value = node.hash
        for node in reversed(pending):
            value = (chain(value, node.tokens, self.page_bytes) or [value])[-1]
            node.hash = value
        return value

    def _tell_stored(self, leaf: Node, run: bytes, before: bytes) -> None:
        """Announces the full pages of a run that was appended to a leaf."""
        assert self.on_event is not None
        hashes = chain(before, run, self.page_bytes)
        if not hashes:
            return
        tokens = array("i", run[: len(hashes) * self.page_bytes]).tolist()
        is_first = leaf.end * TOKEN_BYTES == len(run)
        parent = None if is_first else before
        self.on_event(BlockStored(tuple(hashes), parent, tuple(tokens), self.block_size))

    def _tell_removed(self, leaf: Node, offset: int) -> None:
        """Announces that the full pages of a leaf's run from a byte on go."""
        assert self.on_event is not None
        assert leaf.parent is not None
        hashes = chain(self.hash_of(leaf.parent), leaf.tokens, self.page_bytes)
        gone = tuple(hashes[offset // self.page_bytes :])
        if gone:
            self.on_event(BlockRemoved(gone))
