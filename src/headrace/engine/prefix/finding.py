"""Finding: how much of a prompt the prefix tree has, and how much of that can be used.

The longest common prefix ends somewhere inside a node; where several children have it in common, in
the one that serves the query best. It can be used up to the last position at which every KV group
has what a query sees: full groups have everything; window groups only where an entry (node.py) lets
one in. Changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from headrace.engine.prefix.node import TOKEN_BYTES, Entry, Node, common_bytes, to_bytes
from headrace.engine.prefix.store import NodeStore

#: Of children that have equally much in common with a query, so many on each side are looked at.
_MAX_EQUAL = 8


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree has of a prompt. Valid until the tree changes.

    num_matched: longest common prefix with anything in the tree. num_stored ≤ num_matched:
    positions whose blocks can be shared. start: first position to compute, num_stored or, of a
    prompt that is there to its end, its last one: it is computed for its logits, not stored again.
    short_reason: why num_stored < num_matched. path: the nodes, from the top. entry: has the blocks
    of the window groups. version: of the tree.
    """

    num_matched: int
    num_stored: int
    start: int
    short_reason: str | None
    path: tuple[Node, ...]
    entry: Entry | None
    version: int


def find(store: NodeStore, tokens: list[int], salt: str) -> Match:
    """The longest usable prefix of a prompt."""
    root = store.roots.get(salt)
    if root is None or not tokens:
        return Match(0, 0, 0, None, (), None, store.version)
    path, inside, matched = _walk(store, root, to_bytes(tokens))
    best = _usable(store, path, None, matched, len(tokens))
    for node in inside:
        other = _usable(store, path, node, matched, len(tokens))
        best = other if other.num_stored >= best.num_stored else best
    return best


def _walk(store: NodeStore, root: Node, query: bytes) -> tuple[list[Node], list[Node], int]:
    """Nodes that the query contains as a whole, nodes that it goes on into (those with the longest
    common prefix), and the number of tokens matched."""
    page_bytes = store.page_bytes
    path: list[Node] = []
    node, offset, end = root, 0, len(query)
    while offset < end:
        page = query[offset : offset + page_bytes]
        keys = node.keys
        index = bisect_left(keys, page)
        if index < len(keys) and keys[index] == page:
            child = node.children[index]
            if query.startswith(child.tokens, offset):
                node = child
                path.append(node)
                offset += len(node.tokens)
                continue
        inside, common = _closest(store, node, index, query, offset)
        return path, inside, (offset + common) // TOKEN_BYTES
    return path, [], end // TOKEN_BYTES


def _closest(
    store: NodeStore, node: Node, index: int, query: bytes, offset: int
) -> tuple[list[Node], int]:
    """The children of a node with the longest common prefix with the query from offset on, and that
    length in bytes. index: where the query's page would be inserted: they are around it."""
    best = 0
    inside: list[Node] = []
    for child in node.children[max(index - 1, 0) : index + 1]:
        common = common_bytes(query, offset, child.tokens)
        if common > best:
            best, inside = common, [child]
    if not 0 < best < store.page_bytes or not (store.window_groups or store.unwritten):
        return inside, best
    prefix = query[offset : offset + best]
    around = range(max(index - _MAX_EQUAL, 0), min(index + _MAX_EQUAL, len(node.keys)))
    return [node.children[i] for i in around if node.keys[i].startswith(prefix)], best


def _usable(
    store: NodeStore, path: list[Node], inside: Node | None, matched: int, length: int
) -> Match:
    """How far a query can be served that ends in `inside`, or at the end of the path."""
    nodes = path if inside is None else [*path, inside]
    written = matched
    if inside is None:
        written = nodes[-1].end if nodes else 0
    elif store.unwritten and _is_unwritten(store, inside, matched):
        written = matched // store.block_size * store.block_size
    stored, entry = written, None
    if store.window_groups:
        stored, entry = _enterable(nodes, written, length)
    start = max(min(stored, length - 1), 0)
    reason = None
    if stored < matched:
        reason = _short_reason(matched, stored, is_writing=stored == written)
    return Match(matched, stored, start, reason, tuple(nodes), entry, store.version)


def _enterable(nodes: list[Node], stored: int, length: int) -> tuple[int, Entry | None]:
    """The last position ≤ stored at which every window group has what a query sees."""
    for node in reversed(nodes):
        position = min(node.end, stored)
        entry = node.entry
        if (
            entry is not None
            and position > node.start
            and entry.oldest <= min(position, length - 1)
        ):
            return position, entry
    return 0, None


def _is_unwritten(store: NodeStore, node: Node, position: int) -> bool:
    """Whether the block that holds `position` and later ones of a node is still being written,
    in any group; at a block border nothing would be copied."""
    column, rest = divmod(position, store.block_size)
    if not rest:
        return False
    at = (column - node.start // store.block_size) * len(store.full_groups)
    held = [(group, node.blocks[at + k]) for k, group in enumerate(store.full_groups)]
    if node.entry is not None and node.entry.oldest <= position:
        for k, group in enumerate(store.window_groups):
            held.append((group, node.entry.columns(k, column, column + 1)[0]))
    return not store.unwritten.isdisjoint(held)


def _short_reason(matched: int, stored: int, *, is_writing: bool) -> str:
    if is_writing:
        return (
            f"positions {stored} to {matched - 1} lie in a block that is being computed in this "
            f"very step, so they are computed again"
        )
    return (
        f"{matched} positions match, but the blocks of a sliding-window group allow to go on only "
        f"from position {stored}, so positions {stored} to {matched - 1} are computed again"
    )
