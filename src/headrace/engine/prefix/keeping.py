"""Keeping: where a sequence that was computed goes in the prefix tree.

    what is there           |a b c d|e f g h|i j|        B = 4, the last page is partly filled

    |a b c d|e f g h|i j k|       the page i j k takes the place of i j
    |a b c d|e f g h|i|           nothing to do: i is the beginning of a page that is there
    |a b c d|e x|                 split after d; the page e x becomes a second child
    |a b x|                       a second child of the root: no node is split inside a page

Where there are no window groups, a leaf is lengthened in place. Where there are, nodes end where
entries are: a leaf gets a child, and a sequence that ends inside a node splits it.
"""

from __future__ import annotations

from bisect import bisect_left

from headrace.engine.blocks import SequenceBlocks
from headrace.engine.prefix.node import TOKEN_BYTES, Node, common_bytes
from headrace.engine.prefix.store import NodeStore


def keep(
    store: NodeStore,
    root: Node,
    query: bytes,
    blocks: SequenceBlocks,
    first_unwritten: int,
    oldest: int,
) -> Node:
    """Inserts what is missing of the query. Returns the node that ends where the query does, or at
    the last block border before when a longer page is there. For the arguments see NodeStore."""
    page_bytes = store.page_bytes
    node, offset, end = root, 0, len(query)
    while offset < end:
        page = query[offset : offset + page_bytes]
        keys = node.keys
        index = bisect_left(keys, page)
        child = node.children[index] if index < len(keys) else None
        if child is not None and child.tokens.startswith(page):
            run = child.tokens
            is_inside = query.startswith(run, offset)
            common = len(run) if is_inside else common_bytes(query, offset, run)
            whole = common - common % page_bytes
            border = child.start + whole // TOKEN_BYTES
            if is_inside and (common == whole or offset + common == end):
                node = child
                offset += common
            elif is_inside:  # the query goes on in a leaf's partly filled page
                store.cut(child, border)
            elif offset + common < end:
                node = store.split(child, border)
                offset += whole
            else:  # the query ends inside the child
                if whole and store.window_groups and oldest <= border:
                    node = store.split(child, border)
                else:
                    child.last_used = store.tick
                break
            node.last_used = store.tick
        elif index and page.startswith(keys[index - 1]):  # the same in a leaf of one page
            store.remove(node.children[index - 1], tidy=False)
        else:
            run = query[offset:]
            if node.parent is not None and not node.children and node.entry is None:
                store.append(node, run, blocks, first_unwritten)
            else:
                node = store.add(node, run, blocks, first_unwritten)
            break
    node.last_used = store.tick
    return node
