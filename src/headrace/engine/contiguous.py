"""The contiguous allocators, the baselines that paging is compared with: reserve-to-maximum, and
runs that grow by doubling and move."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.pools import BlockPool, RunPool
from headrace.engine.sizing import ceil_div
from headrace.ops.kv import KVGroupSpec


class _RunManager(BlockManager):
    """What both have: pools of runs, windows that are not trimmed."""

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        block_size: int,
        max_positions: int,
    ) -> None:
        super().__init__(groups, num_blocks, block_size, max_positions, frees_window=False)

    def _make_pool(self, num_blocks: int) -> BlockPool:
        return RunPool(num_blocks)

    @property
    def _runs(self) -> list[RunPool]:
        return [pool for pool in self.pools if isinstance(pool, RunPool)]


class ContiguousBlockManager(_RunManager):
    """Reserve-to-maximum allocation, the baseline paging is compared with.

    A holder gets one run of neighbouring blocks for the longest it may become when it is opened,
    and nothing later; nothing is shared (a fork copies) and windows are not trimmed.
    """

    def open(self, max_positions: int) -> SequenceBlocks | None:
        columns = ceil_div(max_positions, self.block_size)
        pools = self._runs
        if any(pool.find_run(columns) < 0 for pool in pools):
            return None
        blocks = SequenceBlocks(self.num_groups, self.max_columns)
        for group, pool in enumerate(pools):
            blocks.tables[group][:columns] = pool.take_run(columns)
            blocks.num_columns[group] = columns
        return blocks

    def fork(
        self, blocks: SequenceBlocks, num_positions: int, max_positions: int
    ) -> SequenceBlocks | None:
        child = self.open(max_positions)
        if child is None:
            return None
        columns = ceil_div(num_positions, self.block_size)
        for group in range(self.num_groups):
            sources = blocks.tables[group][:columns].tolist()
            destinations = child.tables[group][:columns].tolist()
            for source, destination in zip(sources, destinations, strict=True):
                self.pending_copies.append((group, source, destination))
        return child


class GrowingBlockManager(_RunManager):
    """One run of neighbouring blocks per holder, that doubles when it is full.

    Where the blocks behind it are taken, it moves to another place, which may overlap the one that
    it leaves: so a holder that is alone can always have the whole pool.

        a a a b b . . . . .    a is full; the longest run it can have is the five behind b
        . . . b b a a a a a    full again, and b ends:
        a a a a a a a a a a    copied to the left, first block first

    Nothing is shared (a fork copies) and windows are not trimmed.
    """

    def fit(self, blocks: SequenceBlocks, start: int, want: int) -> int:
        end = start + want
        for group, pool in enumerate(self._runs):
            if end > blocks.num_columns[group] * self.block_size:
                longest = pool.longest_run(_run_of(blocks, group))
                end = min(end, longest * self.block_size)
        return max(end - start, 0)

    def extend(self, blocks: SequenceBlocks, start: int, num_tokens: int) -> None:
        if num_tokens == 0:
            return
        columns = ceil_div(start + num_tokens, self.block_size)
        for group, pool in enumerate(self._runs):
            held = _run_of(blocks, group)
            if columns <= len(held):
                continue
            longest = min(pool.longest_run(held), self.max_columns)
            new = pool.move_run(held, min(max(columns, 2 * len(held)), longest))
            filled = ceil_div(start, self.block_size)
            self._note_move(group, held[:filled], new)
            blocks.tables[group][: len(new)] = new
            blocks.num_columns[group] = len(new)
        blocks.num_writable = min(blocks.num_columns) * self.block_size
        blocks.version += 1

    def _note_move(self, group: int, old: range, new: range) -> None:
        """Copies of the old blocks, in an order in which none is overwritten before it is read."""
        if not old or old.start == new.start:
            return
        columns = range(len(old)) if new.start < old.start else reversed(range(len(old)))
        self.pending_copies.extend((group, old[c], new[c]) for c in columns)

    def fork(
        self, blocks: SequenceBlocks, num_positions: int, max_positions: int
    ) -> SequenceBlocks | None:
        columns = ceil_div(num_positions, self.block_size)
        if any(pool.find_run(columns) < 0 for pool in self._runs):
            return None
        child = SequenceBlocks(self.num_groups, self.max_columns)
        for group, pool in enumerate(self._runs):
            new = pool.take_run(columns)
            self._note_move(group, _run_of(blocks, group)[:columns], new)
            child.tables[group][:columns] = new
            child.num_columns[group] = columns
        child.num_writable = min(child.num_columns) * self.block_size
        return child


def _run_of(blocks: SequenceBlocks, group: int) -> range:
    """The blocks of a holder, which are neighbours."""
    columns = blocks.num_columns[group]
    start = blocks.views[group][0] if columns else 0
    return range(start, start + columns)
