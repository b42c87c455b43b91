"""Prefix tree: token sequences of the past and the blocks that hold their keys and values.

    tokens   |0 … 31: system prompt|32 … 44: a question          B = 16
    blocks    4     7               9
                    └─ |32 … 71: another question|
                        2     5     8
    match of a prompt that begins with positions 0 … 39 of the other question:
    matched = stored = 40, blocks 4 7 2; the next writer copies block 2 first (blocks.py)

Pure bookkeeping over token ids and block ids. Never touches requests, tensors or clocks: last use
is a counter. What may be used by whom is decided by `match`; what is held, by store.py; what goes
first, by eviction.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix import inspection
from headrace.engine.prefix.events import Listener
from headrace.engine.prefix.eviction import evict
from headrace.engine.prefix.inspection import SaltSummary
from headrace.engine.prefix.node import TOKEN_BYTES, Entry, Node, common_bytes, to_bytes
from headrace.engine.prefix.store import NodeStore
from headrace.engine.sizing import ceil_div

_NOTHING_UNWRITTEN = 1 << 62


@dataclass(slots=True)
class CacheStats:
    """Since the start, in tokens but for num_queries. queried: of all prompts that were matched.
    hit: of them not computed again. inserted, evicted: positions that came into the tree and that
    went to make room."""

    num_queries: int = 0
    num_queried_tokens: int = 0
    num_hit_tokens: int = 0
    num_inserted_tokens: int = 0
    num_evicted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree has of a prompt. Valid until the tree changes.

    num_matched: longest common prefix with anything in the tree. num_stored ≤ num_matched:
    positions whose blocks can be shared. start: first position to compute, num_stored or, of a
    prompt that is there to its end, its last one. short_reason: why num_stored < num_matched.
    path: nodes from the top; entry: the window blocks; version: of the tree.
    """

    num_matched: int
    num_stored: int
    start: int
    short_reason: str | None
    path: tuple[Node, ...]
    entry: Entry | None
    version: int


class PrefixTree:
    """See the module's text. on_event: told of every change of what can be found (events.py)."""

    def __init__(self, manager: BlockManager, on_event: Listener | None = None) -> None:
        self._store = NodeStore(manager, on_event)
        self.stats = CacheStats()

    @property
    def num_tokens(self) -> int:
        """Positions in the tree."""
        return self._store.num_tokens

    @property
    def block_size(self) -> int:
        return self._store.block_size

    @property
    def num_nodes(self) -> int:
        return self._store.num_nodes

    @property
    def store(self) -> NodeStore:
        """Its nodes and what they hold: look (saving does), do not change."""
        return self._store

    # ---- finding ------------------------------------------------------------------------------

    def match(self, tokens: list[int], salt: str = "", *, counts: bool = True) -> Match:
        """The longest usable prefix. Marks it as just used. counts: as a query, in `stats`."""
        store = self._store
        store.tick += 1
        found = self._find(tokens, salt)
        for node in found.path:
            node.last_used = store.tick
        if found.entry is not None:
            found.entry.last_used = store.tick
        if counts:
            self.stats.num_queries += 1
            self.stats.num_queried_tokens += len(tokens)
            self.stats.num_hit_tokens += found.start
        return found

    def peek(self, tokens: list[int], salt: str = "") -> int:
        """How many tokens `match` would save, changing nothing."""
        return self._find(tokens, salt).start

    def share(self, match: Match) -> SequenceBlocks:
        """Tables that share the blocks of a match. The caller closes them (BlockManager.close).
        The tree must not have changed since the match."""
        store, manager = self._store, self._store.manager
        assert match.version == store.version, "the tree changed after the match"
        blocks = SequenceBlocks(manager.num_groups, manager.max_columns)
        columns = ceil_div(match.num_stored, store.block_size)
        if columns == 0:
            return blocks
        stride = len(store.full_groups)
        held: list[int] = []
        for node in match.path:
            held.extend(node.blocks)
            if len(held) >= columns * stride:
                break
        for k, group in enumerate(store.full_groups):
            self._lend(blocks, group, 0, held[k : columns * stride : stride])
        for k, group in enumerate(store.window_groups):
            assert match.entry is not None
            first = max(0, match.start - store.windows[k] + 1) // store.block_size
            self._lend(blocks, group, first, match.entry.columns(k, first, columns).tolist())
        return blocks

    def _lend(self, blocks: SequenceBlocks, group: int, first: int, held: list[int]) -> None:
        pool = self._store.manager.pools[group]
        for block in held:
            pool.share(block)
        blocks.tables[group][first : first + len(held)] = held
        blocks.first_columns[group] = first
        blocks.num_columns[group] = first + len(held)

    def _find(self, tokens: list[int], salt: str) -> Match:
        store = self._store
        root = store.roots.get(salt)
        if root is None or not tokens:
            return Match(0, 0, 0, None, (), None, store.version)
        path, inside, matched = self._walk(root, to_bytes(tokens))
        best = self._usable(path, None, matched, len(tokens))
        for node in inside:
            candidate = self._usable(path, node, matched, len(tokens))
            if best is None or candidate.num_stored >= best.num_stored:
                best = candidate
        return best

    def _walk(self, root: Node, query: bytes) -> tuple[list[Node], list[Node], int]:
        """Nodes that the query contains as a whole, nodes that it goes on into (the one or two
        with the longest common prefix), and the number of tokens matched."""
        page_bytes = self._store.page_bytes
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
            best = 0
            inside: list[Node] = []
            for child in node.children[max(index - 1, 0) : index + 1]:
                common = common_bytes(query, offset, child.tokens)
                if common > best:
                    best, inside = common, [child]
                elif common == best and common:
                    inside.append(child)
            return path, inside, (offset + best) // TOKEN_BYTES
        return path, [], end // TOKEN_BYTES

    def _usable(self, path: list[Node], inside: Node | None, matched: int, length: int) -> Match:
        """How far a query can be served that ends in `inside`, or at the end of the path."""
        store = self._store
        nodes = path if inside is None else [*path, inside]
        written = matched
        if inside is None:
            written = nodes[-1].end if nodes else 0
        elif store.unwritten and self._is_unwritten(inside, matched):
            written = matched // store.block_size * store.block_size
        stored, entry = written, None
        if store.window_groups:
            stored, entry = self._enterable(nodes, written, length)
        start = max(min(stored, length - 1), 0)
        reason = None
        if stored < matched:
            reason = _short_reason(matched, stored, is_writing=stored == written)
        return Match(matched, stored, start, reason, tuple(nodes), entry, store.version)

    def _enterable(self, nodes: list[Node], stored: int, length: int) -> tuple[int, Entry | None]:
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

    def _is_unwritten(self, node: Node, position: int) -> bool:
        """Whether the block that holds `position` and later ones of a node is still being written,
        in any group; at a block border nothing would be copied."""
        store = self._store
        column, rest = divmod(position, store.block_size)
        if not rest:
            return False
        stride = len(store.full_groups)
        at = (column - node.start // store.block_size) * stride
        if any(
            (g, node.blocks[at + k]) in store.unwritten for k, g in enumerate(store.full_groups)
        ):
            return True
        if node.entry is None:
            return False
        return any(
            (group, block) in store.unwritten
            for k, group in enumerate(store.window_groups)
            for block in node.entry.columns(k, column, column + 1)
        )

    # ---- keeping ------------------------------------------------------------------------------

    def insert(
        self,
        tokens: list[int],
        blocks: SequenceBlocks,
        num_positions: int,
        *,
        salt: str = "",
        entry_from: int | None = None,
    ) -> int:
        """Keeps positions [0, num_positions) of a sequence, all computed. Returns how many of them
        are new to the tree, which becomes a holder of their blocks; the others stay as they were.

        Where there are window groups, entry_from is the oldest position that must be enterable (as
        far as `blocks` reaches back); without it nothing is inserted: nobody could use it. Sets
        blocks.num_writable to 0 when its last, partly filled block may be shared now.
        """
        return self._insert(tokens, blocks, num_positions, salt, entry_from, _NOTHING_UNWRITTEN)

    def promise(
        self,
        tokens: list[int],
        blocks: SequenceBlocks,
        num_positions: int,
        first_unwritten: int,
        *,
        salt: str = "",
        entry_from: int | None = None,
    ) -> int:
        """`insert` of the whole blocks of [0, num_positions), of which the step that is being
        scheduled will write positions from first_unwritten on. Until `settle`, a block that it
        writes is found as a whole or not at all: a copy of a part would be made before the step.
        """
        size = self._store.block_size
        whole = num_positions // size * size
        if entry_from is not None:
            entry_from = min(entry_from, whole)
        return self._insert(tokens, blocks, whole, salt, entry_from, first_unwritten // size)

    def settle(self) -> None:
        """The step ran: everything promised is written."""
        self._store.unwritten.clear()

    def _insert(
        self,
        tokens: list[int],
        blocks: SequenceBlocks,
        num_positions: int,
        salt: str,
        entry_from: int | None,
        first_unwritten: int,
    ) -> int:
        store = self._store
        oldest = self._oldest(blocks, entry_from, num_positions)
        if num_positions == 0 or oldest > num_positions:
            return 0
        store.tick += 1
        query = to_bytes(tokens[:num_positions])
        before = store.num_tokens
        node = self._keep(store.root(salt), query, blocks, first_unwritten, oldest)
        added = store.num_tokens - before
        if store.window_groups:
            above: Node | None = node
            while above is not None and above.parent is not None and above.end >= oldest:
                store.enter(above, oldest, blocks, first_unwritten)
                above = above.parent
        if num_positions % store.block_size:
            blocks.num_writable = 0
        store.leaves.shrink(store.num_nodes)
        store.entries.shrink(store.num_nodes)
        self.stats.num_inserted_tokens += added
        return added

    def _oldest(self, blocks: SequenceBlocks, entry_from: int | None, num_positions: int) -> int:
        """The oldest position to be made enterable; beyond num_positions = there is none."""
        store = self._store
        if not store.window_groups:
            return 0
        if entry_from is None:
            return num_positions + 1
        oldest = entry_from
        for group, window in zip(store.window_groups, store.windows, strict=True):
            first = blocks.first_columns[group]
            if first:
                oldest = max(oldest, first * store.block_size + window - 1)
        return oldest

    def _keep(
        self,
        root: Node,
        query: bytes,
        blocks: SequenceBlocks,
        first_unwritten: int,
        oldest: int,
    ) -> Node:
        """Inserts what is missing of the query; the node that ends where the query does, or the
        last one that ends at a block border before."""
        store, page_bytes = self._store, self._store.page_bytes
        node, offset, end = root, 0, len(query)
        while offset < end:
            page = query[offset : offset + page_bytes]
            keys = node.keys
            index = bisect_left(keys, page)
            child = node.children[index] if index < len(keys) else None
            if child is not None and child.tokens.startswith(page):
                run = child.tokens
                common = common_bytes(query, offset, run)
                whole = common // page_bytes * page_bytes
                if common == len(run) and (common == whole or offset + common == end):
                    node = child
                    node.last_used = store.tick
                    offset += common
                elif common == len(run):  # the query goes on in a leaf's partly filled page
                    store.cut(child, child.start + whole // TOKEN_BYTES)
                elif offset + common == end:  # the query ends inside the child
                    position = child.start + whole // TOKEN_BYTES
                    if whole and store.window_groups and oldest <= position:
                        node = store.split(child, position)
                    else:
                        child.last_used = store.tick
                    node.last_used = store.tick
                    break
                else:
                    node = store.split(child, child.start + whole // TOKEN_BYTES)
                    node.last_used = store.tick
                    offset += whole
            elif index and page.startswith(keys[index - 1]):  # the same in a leaf of one page
                store.remove(node.children[index - 1], tidy=False)
            else:
                run = query[offset:]
                if node.parent is not None and not node.children and node.entry is None:
                    store.append(node, run, blocks, first_unwritten)
                else:
                    node = store.add(node, run, blocks, first_unwritten)
                break
        return node

    # ---- letting go ---------------------------------------------------------------------------

    def evict(self, shortages: Sequence[int]) -> bool:
        """Frees, of each group, the number of blocks asked for, or all that nobody else holds when
        there are fewer. Returns whether anything was freed."""
        store = self._store
        pools = store.manager.pools
        free = [pool.num_free for pool in pools]
        before = store.num_tokens
        for group, count in enumerate(shortages):
            missing = count - (pools[group].num_free - free[group])
            if missing > 0 and pools[group].num_reclaimable:
                evict(store, group, missing)
        self.stats.num_evicted_tokens += before - store.num_tokens
        return any(pool.num_free > count for pool, count in zip(pools, free, strict=True))

    def forget(self, tokens: list[int], salt: str = "") -> None:
        """Lets everything go that begins like `tokens`, to the first fork: it is not sound."""
        found = self._find(tokens, salt)
        if found.path:
            self._store.remove_below(found.path[0])

    def clear(self) -> None:
        """Lets everything go: after a step that failed, its promises are worth nothing."""
        self._store.clear()

    # ---- looking ------------------------------------------------------------------------------

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """(salt, node), most recently used first, parents before their children."""
        return inspection.by_last_use(self._store)

    def summary(self, block_bytes: Sequence[int]) -> list[SaltSummary]:
        """What is held for each salt. block_bytes: of one block of each group."""
        return inspection.summary(self._store, block_bytes)

    @property
    def num_bytes(self) -> int:
        """Memory of the bookkeeping, the counts of the pools included. Walks all nodes."""
        return inspection.num_bytes(self._store)

    def check(self) -> None:
        """Raises AssertionError when structure, counts or references disagree."""
        inspection.check(self._store)


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
