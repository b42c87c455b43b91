"""The contiguous allocator: reserve-to-maximum, the baseline that paging is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.pools import BlockPool, RunPool
from headrace.engine.sizing import ceil_div
from headrace.ops.kv import KVGroupSpec


class ContiguousBlockManager(BlockManager):
    """Reserve-to-maximum allocation, the baseline paging is compared with.

    A holder gets one run of neighbouring blocks for the longest it may become when it is opened,
    and nothing later; nothing is shared (a fork copies) and windows are not trimmed.
    """

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

    def open(self, max_positions: int) -> SequenceBlocks | None:
        columns = ceil_div(max_positions, self.block_size)
        pools = [pool for pool in self.pools if isinstance(pool, RunPool)]
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
