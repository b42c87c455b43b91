"""Blocks: who holds which block of KV memory. Ids and counts only; never touches tensor memory.

    block table of one sequence in one group (B = 4, window 6, 11 positions computed)
    column        0    1    2
    positions    0-3  4-7  8-11
    block         −1    7    2        column 0 was freed: its last position 3 ≤ 11 − 6
                  ^first_columns = 1   ^num_columns = 3

A block has a reference count = the number of tables that hold it (of sequences, pins …)
plus the number of times that the prefix tree holds it (tree_counts). A block that only
the tree holds can be had by eviction (num_reclaimable). A block with more than one holder is never
written: `extend` first gives the writer its own copy and notes the pair in `pending_copies`, which
the step hands to the executor, in order, before it runs. Invariants: `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.engine.pools import BlockPool
from headrace.engine.sizing import ceil_div
from headrace.ops.batch import Int32Array
from headrace.ops.kv import KVGroupSpec


class SequenceBlocks:
    """The block tables of one holder: a sequence, or whatever else keeps blocks for later.

    tables[g]: int32 [max columns]; −1 where nothing is held. Columns [first_columns[g],
    num_columns[g]) are held, in every group. num_writable: positions below it, from the next one to
    compute on, are in blocks that nobody else holds. version: grows with every change of a table or
    of first_columns.
    """

    __slots__ = ("first_columns", "num_columns", "num_writable", "tables", "version", "views")

    def __init__(self, num_groups: int, max_columns: int) -> None:
        self.tables: tuple[Int32Array, ...] = tuple(
            np.full(max_columns, -1, np.int32) for _ in range(num_groups)
        )
        #: The tables again; an element is a plain int.
        self.views: tuple[memoryview[int], ...] = tuple(t.data for t in self.tables)
        self.num_columns = [0] * num_groups
        self.first_columns = [0] * num_groups
        self.num_writable = 0
        self.version = 0

    def held(self, group: int) -> list[int]:
        """Block ids held in a group, by column."""
        first, end = self.first_columns[group], self.num_columns[group]
        ids: list[int] = self.tables[group][first:end].tolist()
        return ids


@dataclass(frozen=True, slots=True)
class KVUsage:
    """total: all pools. held: blocks that someone holds, once each. used: the part of them that
    holds computed positions; a position that several holders share counts once. The useful share
    of an allocation strategy is used / held."""

    total_bytes: int
    held_bytes: int
    used_bytes: int

    @property
    def useful_share(self) -> float:
        return self.used_bytes / self.held_bytes if self.held_bytes else 1.0


class BlockManager:
    """Paged allocation: blocks on demand, shared prefixes, copy-on-write, windows trimmed.

    All methods are all-or-nothing: they either do the whole thing or, where they say so, nothing.
    """

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        block_size: int,
        max_positions: int,
        *,
        frees_window: bool = True,
    ) -> None:
        self.block_size = block_size
        self.max_columns = ceil_div(max_positions, block_size)
        self.windows: tuple[int | None, ...] = tuple(
            g.window if frees_window else None for g in groups
        )
        #: Whether `trim` ever frees something.
        self.trims = any(window is not None for window in self.windows)
        self.pools: tuple[BlockPool, ...] = tuple(self._make_pool(n) for n in num_blocks)
        self.pending_copies: list[tuple[int, int, int]] = []  # (group, source, destination)

    def _make_pool(self, num_blocks: int) -> BlockPool:
        return BlockPool(num_blocks)

    @property
    def num_groups(self) -> int:
        return len(self.pools)

    @property
    def free_counts(self) -> tuple[int, ...]:
        return tuple(pool.num_free for pool in self.pools)

    @property
    def available_counts(self) -> tuple[int, ...]:
        """Blocks of each group that requests could have now: free, or cached and used by nobody."""
        return tuple(pool.num_free + pool.num_reclaimable for pool in self.pools)

    def open(self, max_positions: int) -> SequenceBlocks | None:
        """Empty tables for a holder that may reach max_positions. None = no room (contiguous)."""
        return SequenceBlocks(self.num_groups, self.max_columns)

    def fit(self, blocks: SequenceBlocks, start: int, want: int) -> int:
        """The most tokens n ≤ want for which extend(blocks, start, n) has blocks now; 0 = none."""
        size = self.block_size
        end = start + want
        for group, pool in enumerate(self.pools):
            columns = blocks.num_columns[group]
            copies = self._num_shared(blocks, group, start) if start < columns * size else 0
            if copies == 0 and end <= columns * size:
                continue
            free = pool.num_free - copies
            if free < 0:
                return 0
            end = min(end, (columns + free) * size)
        return max(end - start, 0)

    def missing(self, blocks: SequenceBlocks, start: int, num_tokens: int) -> list[int]:
        """Blocks of each group that have to become free before extend(blocks, start, num_tokens)
        has all it takes."""
        end_column = ceil_div(start + num_tokens, self.block_size)
        counts = []
        for group, pool in enumerate(self.pools):
            columns = blocks.num_columns[group]
            need = max(end_column - columns, 0)
            if start < columns * self.block_size:
                need += self._num_shared(blocks, group, start)
            counts.append(max(need - pool.num_free, 0))
        return counts

    def extend(self, blocks: SequenceBlocks, start: int, num_tokens: int) -> None:
        """Makes positions [start, start + num_tokens) writable by this holder alone.

        fit(blocks, start, num_tokens) = num_tokens must hold. Adds columns, and replaces a shared
        block that will be written by a copy (noted in pending_copies).
        """
        if num_tokens == 0:
            return
        end_column = ceil_div(start + num_tokens, self.block_size)
        for group, pool in enumerate(self.pools):
            table = blocks.tables[group]
            for column in range(start // self.block_size, blocks.num_columns[group]):
                block = int(table[column])
                if pool.ref_counts[block] > 1:
                    own = pool.take()
                    pool.release(block)
                    table[column] = own
                    self.pending_copies.append((group, block, own))
            for column in range(blocks.num_columns[group], end_column):
                table[column] = pool.take()
            blocks.num_columns[group] = max(blocks.num_columns[group], end_column)
        blocks.num_writable = min(blocks.num_columns) * self.block_size
        blocks.version += 1

    def _num_shared(self, blocks: SequenceBlocks, group: int, start: int) -> int:
        """Held blocks from position `start` on that others hold too."""
        counts = self.pools[group].ref_counts
        first = start // self.block_size
        return sum(
            counts[int(blocks.tables[group][c])] > 1
            for c in range(first, blocks.num_columns[group])
        )

    def can_enter(self, blocks: SequenceBlocks, position: int) -> int | None:
        """Whether a query at `position` finds everything it may see. None = yes; otherwise the
        oldest position held by the group that lacks some."""
        for group, window in enumerate(self.windows):
            oldest = blocks.first_columns[group] * self.block_size
            if oldest > (0 if window is None else max(0, position - window + 1)):
                return oldest
        return None

    def fork(
        self, blocks: SequenceBlocks, num_positions: int, max_positions: int
    ) -> SequenceBlocks | None:
        """New tables that share the blocks of the first num_positions. None = no room
        (contiguous); never for the paged allocator."""
        child = SequenceBlocks(self.num_groups, self.max_columns)
        blocks.num_writable = 0
        columns = ceil_div(num_positions, self.block_size)
        for group, pool in enumerate(self.pools):
            first = blocks.first_columns[group]
            assert columns <= blocks.num_columns[group], "fork past the end of a table"
            for block in blocks.tables[group][first:columns].tolist():
                pool.share(block)
            child.tables[group][first:columns] = blocks.tables[group][first:columns]
            child.num_columns[group] = max(columns, first)
            child.first_columns[group] = first
        return child

    def trim(self, blocks: SequenceBlocks, num_computed: int) -> None:
        """Frees window blocks that no later query can see.

        A query at p ≥ num_computed sees p−w+1 … p, so column c is dead once its last position
        (c+1)·B − 1 ≤ num_computed − w. Only committed positions count: a chunk that is still
        running looks back from its first row.
        """
        for group, window in enumerate(self.windows):
            if window is None:
                continue
            dead = min((num_computed - window + 1) // self.block_size, blocks.num_columns[group])
            first = blocks.first_columns[group]
            if dead <= first:
                continue
            table = blocks.tables[group]
            for block in table[first:dead].tolist():
                self.pools[group].release(block)
            table[first:dead] = -1
            blocks.first_columns[group] = dead
            blocks.version += 1

    def close(self, blocks: SequenceBlocks) -> None:
        """Gives up everything held; the tables are empty afterwards."""
        for group, pool in enumerate(self.pools):
            for block in reversed(blocks.held(group)):  # so that reuse comes in ascending order
                pool.release(block)
            blocks.tables[group][: blocks.num_columns[group]] = -1
            blocks.num_columns[group] = blocks.first_columns[group] = 0
        blocks.num_writable = 0
        blocks.version += 1

    def take_copies(self) -> list[tuple[int, int, int]]:
        """Pending copies (group, source, destination); must be made in this order, before any
        write of the step."""
        copies, self.pending_copies = self.pending_copies, []
        return copies

    def usage(
        self, holders: Iterable[tuple[SequenceBlocks, int]], block_bytes: Sequence[int]
    ) -> KVUsage:
        """holders: tables with their number of computed positions. block_bytes: of each group."""
        everyone = list(holders)
        total = held = used = 0
        for group, (pool, size) in enumerate(zip(self.pools, block_bytes, strict=True)):
            filled: dict[int, int] = {}
            for blocks, num_computed in everyone:
                first = blocks.first_columns[group]
                for column, block in enumerate(blocks.held(group), start=first):
                    inside = min(max(num_computed - column * self.block_size, 0), self.block_size)
                    filled[block] = max(filled.get(block, 0), inside)
            total += pool.num_blocks * size
            held += len(filled) * size
            used += sum(filled.values()) * size // self.block_size
        return KVUsage(total, held, used)

    def check(self, holders: Iterable[SequenceBlocks]) -> None:
        """Raises AssertionError unless: free + held = total, a block of the prefix tree being held
        too; every count equals the number of holders and of the tree's references; the reclaimable
        are those that only the tree holds; no id is both free and held; tables hold ids exactly in
        their live columns. holders: all but the tree."""
        everyone = list(holders)
        for group, pool in enumerate(self.pools):
            expected = {b: count for b, count in enumerate(pool.tree_counts) if count}
            only_tree = set(expected)
            for blocks in everyone:
                first, end = blocks.first_columns[group], blocks.num_columns[group]
                assert 0 <= first <= end <= self.max_columns
                table = blocks.tables[group]
                assert (table[:first] == -1).all(), "id in a freed column"
                assert (table[end:] == -1).all(), "id past the last column"
                for block in blocks.held(group):
                    assert 0 <= block < pool.num_blocks, f"id {block} out of range"
                    expected[block] = expected.get(block, 0) + 1
                    only_tree.discard(block)
                assert len(set(blocks.held(group))) == end - first, "block twice in one table"
            free = pool.free_blocks()
            assert len(free) == len(set(free)) == pool.num_free
            assert not expected.keys() & set(free), "block both free and held"
            assert len(free) + len(expected) == pool.num_blocks, "block lost"
            for block, count in expected.items():
                assert pool.ref_counts[block] == count, f"count of block {block} is wrong"
            assert pool.num_reclaimable == len(only_tree), "reclaimable blocks are miscounted"
