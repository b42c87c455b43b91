"""Looking at the prefix tree without changing it: order of saving, its shape, sizes, invariants."""

from __future__ import annotations

import heapq
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.engine.prefix.node import TOKEN_BYTES, Node, walk
from headrace.engine.prefix.store import NodeStore
from headrace.engine.sizing import ceil_div

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SaltSummary:
    """What the tree holds for one salt. held_bytes: KV memory of its blocks, once each."""

    salt: str
    num_nodes: int
    num_positions: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class NodeLook:
    """A node. parent: its place in the list, None = below the root of its salt. num_children: also
    those that are not in the list. num_holders: sequences and pins that hold its first block, or
    its last where all layers have windows."""

    parent: int | None
    salt: str
    start: int
    num_tokens: int
    num_children: int
    num_holders: int


@dataclass(frozen=True, slots=True)
class TreeLook:
    """The whole of a tree, and some of its nodes, parents before their children."""

    num_nodes: int
    num_tokens: int
    num_salts: int
    nodes: list[NodeLook]


#: Nodes that a look at the tree's shape compares, however many there are.
MAX_COMPARED = 4096


def shape(store: NodeStore, max_nodes: int) -> TreeLook:
    """The most recently used nodes; fewer nodes are the first of more. Of very many siblings some,
    evenly spread, are looked at."""
    room = MAX_COMPARED
    heap: list[tuple[int, int, Node, int | None, str]] = []

    def push(children: Sequence[Node], most: int, parent: int | None, salt: str) -> None:
        nonlocal room
        for child in _spread(children, min(room, most)):
            # The second number keeps nodes themselves from being compared.
            heapq.heappush(heap, (-child.last_used, room, child, parent, salt))
            room -= 1

    roots = _spread(list(store.roots.items()), MAX_COMPARED // 4)
    for salt, root in roots:
        push(root.children, MAX_COMPARED // 2 // len(roots), None, salt)
    nodes: list[NodeLook] = []
    while heap and len(nodes) < max_nodes:
        _, _, node, parent, salt = heapq.heappop(heap)
        push(node.children, MAX_COMPARED // 16, len(nodes), salt)
        nodes.append(
            NodeLook(
                parent, salt, node.start, _length(node), len(node.children), _holders(store, node)
            )
        )
    return TreeLook(store.num_nodes, store.num_tokens, len(store.roots), nodes)


def _spread(items: Sequence[T], most: int) -> Sequence[T]:
    """At most so many of them, evenly spread."""
    return items if len(items) <= most else items[:: ceil_div(len(items), most)] if most else ()


def _holders(store: NodeStore, node: Node) -> int:
    if store.full_groups:
        group, block = store.full_groups[0], node.blocks[0]
    elif node.entry is not None and node.entry.blocks[0]:
        group, block = store.window_groups[0], node.entry.blocks[0][-1]
    else:
        return 0
    pool = store.manager.pools[group]
    return pool.ref_counts[block] - pool.tree_counts[block]


def by_last_use(store: NodeStore) -> Iterator[tuple[str, Node]]:
    """(salt, node), most recently used first, parents before their children."""
    heap = [
        (-node.last_used, node, salt)
        for salt, root in store.roots.items()
        for node in root.children
    ]
    heapq.heapify(heap)
    while heap:
        _, node, salt = heapq.heappop(heap)
        yield salt, node
        for child in node.children:
            heapq.heappush(heap, (-child.last_used, child, salt))


def summary(store: NodeStore, block_bytes: Sequence[int]) -> list[SaltSummary]:
    """One line per salt, in the order in which they came."""
    lines = []
    for salt, root in store.roots.items():
        nodes = list(walk(root))
        counts = held_blocks(store, nodes)
        held = sum(count * size for count, size in zip(counts, block_bytes, strict=True))
        lines.append(SaltSummary(salt, len(nodes), sum(_length(n) for n in nodes), held))
    return lines


def held_blocks(store: NodeStore, nodes: Sequence[Node]) -> list[int]:
    """Number of different blocks that nodes hold, per group."""
    held: list[set[int]] = [set() for _ in store.manager.pools]
    stride = len(store.full_groups)
    for node in nodes:
        for k, group in enumerate(store.full_groups):
            held[group].update(node.blocks[k::stride])
        if node.entry is not None:
            for group, blocks in zip(store.window_groups, node.entry.blocks, strict=True):
                held[group].update(blocks)
    return [len(blocks) for blocks in held]


def num_bytes(store: NodeStore) -> int:
    """Memory of the bookkeeping, as the allocator rounds it; shared small objects not counted."""
    total = store.leaves.num_bytes_of(_size) + store.entries.num_bytes_of(_size)
    total += _size(store.roots) + _size(store.unwritten)
    for pool in store.manager.pools:
        total += _size(pool.ref_counts) + _size(pool.tree_counts)
    for root in store.roots.values():
        total += _node_bytes(root)
        for node in walk(root):
            total += _node_bytes(node)
    return total


def _node_bytes(node: Node) -> int:
    parts = (node, node.start, node.tokens, node.blocks, node.last_used, node.hash)
    total = sum(_size(part) for part in parts if part is not None)
    if node.children:
        total += _size(node.children) + _size(node.keys)
        for key, child in zip(node.keys, node.children, strict=True):
            total += 0 if key is child.tokens else _size(key)
    if node.entry is not None:
        entry = node.entry
        total += _size(entry) + _size(entry.first_columns) + _size(entry.blocks)
        total += sum(_size(blocks) for blocks in entry.blocks)
    return total


def _size(thing: object) -> int:
    """With the header of the garbage collector, rounded up to 16 bytes."""
    return ceil_div(sys.getsizeof(thing), 16) * 16


def _length(node: Node) -> int:
    return len(node.tokens) // TOKEN_BYTES


# ---- invariants ---------------------------------------------------------------------------


def check(store: NodeStore) -> None:
    """Raises AssertionError when structure, counts or references disagree."""
    counts = [dict[int, int]() for _ in store.manager.pools]
    nodes: list[Node] = []
    for root in store.roots.values():
        assert root.parent is None
        assert root.children, "a root without children"
        _check_children(store, root)
        for node in walk(root):
            nodes.append(node)
            _check_node(store, node, counts)
    assert store.num_nodes == len(nodes), "nodes miscounted"
    assert store.num_tokens == sum(_length(node) for node in nodes), "tokens miscounted"
    for pool, held in zip(store.manager.pools, counts, strict=True):
        expected = [held.get(block, 0) for block in range(pool.num_blocks)]
        assert pool.tree_counts.tolist() == expected, "references of the tree miscounted"
    leaves = {node for node in nodes if not node.children}
    assert leaves <= store.leaves.nodes(), "a leaf that can never be evicted"
    entered = {node for node in nodes if node.entry is not None}
    assert entered <= store.entries.nodes(), "an entry that can never be evicted"


def _check_node(store: NodeStore, node: Node, counts: list[dict[int, int]]) -> None:
    size, stride = store.block_size, len(store.full_groups)
    assert node.parent is not None
    assert node.start == node.parent.end
    assert node.start % size == 0
    assert node.tokens
    assert len(node.blocks) == ceil_div(_length(node), size) * stride
    for k, group in enumerate(store.full_groups):
        for block in node.blocks[k::stride]:
            counts[group][block] = counts[group].get(block, 0) + 1
    if node.children:
        assert node.end % size == 0, "an inner node with a partly filled page"
        _check_children(store, node)
    if store.window_groups and node.entry is None:
        assert len(node.children) > 1, "a node that nobody can enter"
    if node.entry is not None:
        _check_entry(store, node, counts)


def _check_children(store: NodeStore, node: Node) -> None:
    assert len(node.keys) == len(node.children)
    for key, child in zip(node.keys, node.children, strict=True):
        assert child.parent is node
        assert key == child.tokens[: store.page_bytes]
    for key, following in zip(node.keys, node.keys[1:], strict=False):
        assert key < following, "children out of order"
        assert not following.startswith(key), "a page that is a prefix of another"


def _check_entry(store: NodeStore, node: Node, counts: list[dict[int, int]]) -> None:
    entry = node.entry
    assert entry is not None
    assert 0 <= entry.oldest <= node.end
    end = ceil_div(node.end, store.block_size)
    for k, group in enumerate(store.window_groups):
        first = max(0, entry.oldest - store.windows[k] + 1) // store.block_size
        assert entry.first_columns[k] == first
        assert len(entry.blocks[k]) == end - first
        for block in entry.blocks[k]:
            counts[group][block] = counts[group].get(block, 0) + 1
