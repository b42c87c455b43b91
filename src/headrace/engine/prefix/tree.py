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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix import inspection
from headrace.engine.prefix.events import Listener
from headrace.engine.prefix.eviction import evict
from headrace.engine.prefix.finding import Match, find
from headrace.engine.prefix.inspection import SaltSummary, TreeLook
from headrace.engine.prefix.keeping import keep
from headrace.engine.prefix.node import Node, to_bytes
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


class PrefixTree:
    """See the module's text. on_event: told of every change of what can be found (events.py), in
    the middle of it: must not raise and not call the tree."""

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
        found = find(store, tokens, salt)
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
        return find(self._store, tokens, salt).start

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
        node = keep(store, store.root(salt), query, blocks, first_unwritten, oldest)
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
        found = find(self._store, tokens, salt)
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

    def shape(self, max_nodes: int) -> TreeLook:
        """Its most recently used nodes; takes a few milliseconds at most, whatever its size."""
        return inspection.shape(self._store, max_nodes)

    @property
    def num_bytes(self) -> int:
        """Memory of the bookkeeping, the counts of the pools included. Walks all nodes."""
        return inspection.num_bytes(self._store)

    def check(self) -> None:
        """Raises AssertionError when structure, counts or references disagree."""
        inspection.check(self._store)
