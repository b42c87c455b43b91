"""Eviction: which blocks of the prefix tree go when a pool runs short.

A block that somebody else holds (a sequence, a pin) frees nothing when the tree lets it go, so it
stays; a leaf or an entry that is held counts as used now. All that is reclaimable can be had: where
the only way to a block leads through held ones, those are let go as the last resort.

    full groups     the least recently used leaf loses its blocks from its tail on, block by block.
                    Where there are window groups, all that nobody else holds of it at once: a part
                    that ends before its entry cannot be entered
    window groups   the least recently used entry goes; what others hold of it stays, if positions
                    up to the end of the node can be entered with that
"""

from __future__ import annotations

from headrace.engine.prefix.node import Entry, Node
from headrace.engine.prefix.store import NodeStore


def evict(store: NodeStore, group: int, count: int) -> None:
    """Frees `count` blocks of a group's pool, or as many as are reclaimable."""
    pool = store.manager.pools[group]
    target = pool.num_free + min(count, pool.num_reclaimable)
    if group in store.full_groups:
        _evict_leaves(store, group, target)
    else:
        _evict_entries(store, group, target)
    assert pool.num_free >= target, "reclaimable blocks could not be had"


def _evict_leaves(store: NodeStore, group: int, target: int) -> None:
    pool = store.manager.pools[group]
    newest, store.tick = store.tick, store.tick + 1
    held: list[Node] = []
    while pool.num_free < target:
        leaf = store.leaves.pop(newest)
        if leaf is None:
            break
        _trim(store, leaf, group, target)
        if leaf.parent is not None:
            if pool.num_free < target:
                leaf.last_used = store.tick
                held.append(leaf)
            store.leaves.push(leaf)
    for leaf in held:
        if pool.num_free >= target:
            break
        _dig(store, leaf, group, target)


def _trim(
    store: NodeStore, leaf: Node, group: int, target: int, *, also_held: bool = False
) -> None:
    """Takes blocks that nobody else holds off a leaf's tail: until `target` are free, or, where
    there are window groups, all of them. also_held: does not stop at one that somebody holds."""
    pool = store.manager.pools[group]
    blocks = leaf.blocks[store.full_groups.index(group) :: len(store.full_groups)]
    keep = len(blocks)
    missing = keep if store.window_groups else target - pool.num_free
    while keep and missing:
        block = blocks[keep - 1]
        if pool.ref_counts[block] == pool.tree_counts[block]:
            missing -= 1
        elif not also_held:
            break
        keep -= 1
    position = leaf.start + keep * store.block_size
    if keep == len(blocks):
        return
    if keep and (leaf.entry is None or leaf.entry.oldest <= position):
        store.cut(leaf, position)
    else:
        store.remove(leaf)


def _dig(store: NodeStore, leaf: Node, group: int, target: int) -> None:
    """The last resort: also gives up held blocks of a path, where reclaimable ones lie above."""
    pool = store.manager.pools[group]
    index, stride = store.full_groups.index(group), len(store.full_groups)
    node: Node | None = leaf
    while node is not None and node.parent is not None and not node.children:
        if pool.num_free >= target or not any(
            pool.ref_counts[block] == pool.tree_counts[block]
            for above in node.path()
            for block in above.blocks[index::stride]
        ):
            return
        parent = node.parent
        _trim(store, node, group, target, also_held=True)
        node = parent


def _evict_entries(store: NodeStore, group: int, target: int) -> None:
    pool = store.manager.pools[group]
    newest, store.tick = store.tick, store.tick + 1
    held: list[Node] = []
    while pool.num_free < target:
        node = store.entries.pop(newest)
        if node is None:
            break
        assert node.entry is not None
        index = store.window_groups.index(group)
        if any(pool.ref_counts[block] == 1 for block in node.entry.blocks[index]):
            free = pool.num_free
            _narrow(store, node)
            if pool.num_free > free:
                continue  # what is left of it, if anything, is queued again
        if node.entry is not None and node.parent is not None:
            node.entry.last_used = store.tick
            store.entries.push(node)
            held.append(node)
    for node in held:
        if pool.num_free >= target:
            break
        index = store.window_groups.index(group)
        entry = node.entry
        if entry is not None and any(
            pool.ref_counts[block] == pool.tree_counts[block] for block in entry.blocks[index]
        ):
            store.close(node)


def _narrow(store: NodeStore, node: Node) -> None:
    """Gives up the part of an entry that is older than what others hold of it; all of it, when
    the end of the node cannot be entered with the rest."""
    assert node.entry is not None
    oldest = _oldest_held(store, node.entry)
    if oldest is None or oldest > node.end:
        store.close(node)
    elif oldest > node.entry.oldest:
        store.narrow(node, oldest)


def _oldest_held(store: NodeStore, entry: Entry) -> int | None:
    """The oldest position that could be entered with what others hold; None: nothing is held."""
    oldest = 0
    for k, group in enumerate(store.window_groups):
        pool = store.manager.pools[group]
        for column, block in enumerate(entry.blocks[k], start=entry.first_columns[k]):
            if pool.ref_counts[block] > pool.tree_counts[block]:
                if column:
                    oldest = max(oldest, column * store.block_size + store.windows[k] - 1)
                break
        else:
            return None
    return oldest
