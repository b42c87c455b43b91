"""Exact block ids, counts and copies of the block manager, small enough to follow on paper."""

from __future__ import annotations

import numpy as np
import pytest
from toy import FULL, window_group

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.contiguous import ContiguousBlockManager, GrowingBlockManager
from headrace.engine.sizing import peak_blocks, plan_pools
from headrace.errors import CapacityError
from headrace.ops.kv import KVFormat


def paged(*num_blocks: int, window: int | None = None, block_size: int = 4) -> BlockManager:
    groups = [FULL] if window is None else [FULL, window_group(window)]
    return BlockManager(groups, num_blocks, block_size, 64)


def opened(manager: BlockManager) -> SequenceBlocks:
    blocks = manager.open(64)
    assert blocks is not None
    return blocks


def test_blocks_come_on_demand_in_order_and_are_reused_last_freed_first() -> None:
    manager = paged(8)
    a, b = opened(manager), opened(manager)
    manager.extend(a, 0, 5)
    manager.extend(b, 0, 4)
    manager.extend(a, 5, 3)  # position 7 is the last of block 1: nothing new
    manager.extend(a, 8, 1)
    assert a.held(0) == [0, 1, 3]
    assert b.held(0) == [2]
    manager.close(a)
    c = opened(manager)
    manager.extend(c, 0, 9)
    assert c.held(0) == [0, 1, 3]
    assert manager.free_counts == (4,)
    manager.check([b, c])


def test_fork_shares_and_the_first_writers_of_a_partly_filled_block_copy_it() -> None:
    manager = paged(8)
    a = opened(manager)
    manager.extend(a, 0, 6)
    b, c = manager.fork(a, 6, 64), manager.fork(a, 6, 64)
    assert b is not None
    assert c is not None
    assert a.held(0) == b.held(0) == c.held(0) == [0, 1]
    assert list(manager.pools[0].ref_counts[:2]) == [3, 3]
    manager.check([a, b, c])
    manager.extend(b, 6, 1)
    manager.extend(c, 6, 1)
    manager.extend(a, 6, 1)  # the last holder owns it by now
    assert (a.held(0), b.held(0), c.held(0)) == ([0, 1], [0, 2], [0, 3])
    assert manager.take_copies() == [(0, 1, 2), (0, 1, 3)]
    assert manager.take_copies() == []
    manager.check([a, b, c])


def test_fork_at_a_block_border_copies_nothing() -> None:
    manager = paged(8)
    a = opened(manager)
    manager.extend(a, 0, 8)
    b = manager.fork(a, 8, 64)
    assert b is not None
    manager.extend(b, 8, 1)
    assert b.held(0) == [0, 1, 2]
    assert manager.take_copies() == []


def test_fork_of_a_prefix_takes_only_its_blocks() -> None:
    manager = paged(8)
    a = opened(manager)
    manager.extend(a, 0, 14)
    b = manager.fork(a, 5, 64)
    assert b is not None
    assert b.held(0) == [0, 1]
    manager.close(a)
    assert manager.free_counts == (6,)
    manager.check([b])


def test_window_blocks_go_when_their_last_position_is_out_of_sight() -> None:
    manager = paged(8, 8, window=6)
    a = opened(manager)
    manager.extend(a, 0, 12)
    manager.trim(a, 8)  # a query at 8 sees 3 … 8: block 0 holds 0 … 3
    assert a.held(1) == [0, 1, 2]
    manager.trim(a, 9)  # a query at 9 sees 4 … 9
    assert a.held(1) == [1, 2]
    assert a.first_columns == [0, 1]
    assert a.tables[1][:4].tolist() == [-1, 1, 2, -1]
    assert a.held(0) == [0, 1, 2]
    manager.check([a])


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("window", [1, 2, 6, 16, 17])
@pytest.mark.parametrize("chunk", [1, 2, 5, 16])
def test_a_window_never_holds_more_than_its_peak(window: int, block_size: int, chunk: int) -> None:
    manager = BlockManager([window_group(window)], [100], block_size, 100)
    a = opened(manager)
    most = 0
    for start in range(0, 90, chunk):
        manager.extend(a, start, chunk)
        most = max(most, len(a.held(0)))
        visible = max(0, start - window + 1)
        assert a.first_columns[0] * block_size <= visible
        manager.trim(a, start + chunk)
    assert most <= peak_blocks(window, 90 + chunk, chunk, block_size, frees_window=True)


def test_fit_counts_copies_and_the_rest_of_the_last_block() -> None:
    manager = paged(4)
    a = opened(manager)
    assert manager.fit(a, 0, 100) == 16
    manager.extend(a, 0, 6)
    assert manager.fit(a, 6, 100) == 10
    b = manager.fork(a, 6, 64)
    assert b is not None
    assert manager.fit(b, 6, 100) == 6  # one of the two free blocks becomes the copy
    manager.extend(b, 6, 6)
    assert manager.free_counts == (0,)
    assert manager.fit(a, 6, 100) == 2  # a owns its last block alone again


def test_a_position_can_be_entered_only_with_its_window() -> None:
    manager = paged(8, 8, window=6)
    a = opened(manager)
    manager.extend(a, 0, 12)
    manager.trim(a, 12)  # the window group holds 4 …
    assert manager.can_enter(a, 12) is None
    assert manager.can_enter(a, 9) is None
    assert manager.can_enter(a, 8) == 4


def test_contiguous_takes_the_first_run_that_fits_and_keeps_it() -> None:
    manager = ContiguousBlockManager([FULL], [10], 4, 64)
    a, b = manager.open(10), manager.open(16)
    assert a is not None
    assert b is not None
    assert (a.held(0), b.held(0)) == ([0, 1, 2], [3, 4, 5, 6])
    manager.close(a)
    assert manager.free_counts == (6,)
    assert manager.open(20) is None  # 6 free, but no 5 in a row
    c = manager.open(12)
    assert c is not None
    assert c.held(0) == [0, 1, 2]
    manager.check([b, c])


def test_contiguous_fork_copies() -> None:
    manager = ContiguousBlockManager([FULL], [6], 4, 64)
    a = manager.open(12)
    assert a is not None
    b = manager.fork(a, 5, 12)
    assert b is not None
    assert b.held(0) == [3, 4, 5]
    assert manager.take_copies() == [(0, 0, 3), (0, 1, 4)]
    assert manager.fork(a, 5, 12) is None


def test_growing_doubles_and_moves_where_the_neighbour_is_in_the_way() -> None:
    manager = GrowingBlockManager([FULL], [12], 4, 64)
    a, b = opened(manager), opened(manager)
    manager.extend(a, 0, 8)
    manager.extend(b, 0, 4)
    assert (a.held(0), b.held(0)) == ([0, 1], [2])
    assert manager.fit(a, 8, 100) == 28  # behind b, not around it
    manager.extend(a, 8, 1)
    assert a.held(0) == [3, 4, 5, 6]
    assert manager.take_copies() == [(0, 1, 4), (0, 0, 3)]
    manager.extend(b, 4, 1)
    assert b.held(0) == [0, 1]  # block 3 is in the way; what a left is free
    assert manager.take_copies() == [(0, 2, 0)]
    manager.check([a, b])


def test_growing_moves_over_itself_without_losing_a_block() -> None:
    manager = GrowingBlockManager([FULL], [8], 4, 32)
    first, a = opened(manager), opened(manager)
    manager.extend(first, 0, 8)
    manager.extend(a, 0, 12)
    assert a.held(0) == [2, 3, 4]
    manager.close(first)
    assert manager.fit(a, 12, 20) == 20  # alone it can have the whole pool
    manager.extend(a, 12, 20)
    assert a.held(0) == list(range(8))
    memory = ["", "", "x", "y", "z", "", "", ""]
    for _, source, target in manager.take_copies():
        memory[target] = memory[source]
    assert memory[:3] == ["x", "y", "z"]
    manager.check([a])


def test_growing_to_the_right_copies_the_last_block_first() -> None:
    manager = GrowingBlockManager([FULL], [7], 4, 64)
    a, b = opened(manager), opened(manager)
    manager.extend(a, 0, 4)
    manager.extend(b, 0, 4)
    manager.close(a)
    manager.extend(b, 4, 20)
    assert b.held(0) == list(range(1, 7))  # in place
    c = manager.fork(b, 3, 64)
    assert c is not None
    assert c.held(0) == [0]
    assert manager.take_copies() == [(0, 1, 0)]
    assert manager.fork(b, 3, 64) is None
    assert manager.fit(c, 3, 5) == 1  # the rest of its block
    manager.check([b, c])


def test_check_finds_what_it_is_there_for() -> None:
    manager = paged(8)
    a = opened(manager)
    manager.extend(a, 0, 8)
    with pytest.raises(AssertionError, match="lost"):
        manager.check([])
    other = SequenceBlocks(1, manager.max_columns)
    other.tables[0][0] = 1
    other.num_columns[0] = 1
    with pytest.raises(AssertionError, match="count"):
        manager.check([a, other])
    other.tables[0][0] = 5
    with pytest.raises(AssertionError, match="free"):
        manager.check([a, other])
    a.tables[0][1] = 0
    with pytest.raises(AssertionError, match="twice"):
        manager.check([a])
    a.tables[0][5] = 3
    with pytest.raises(AssertionError, match="past"):
        manager.check([a])


def test_pools_share_one_budget_in_the_ratio_of_a_full_context() -> None:
    groups = (FULL, window_group(32))  # 16 bytes per position each, in f32
    plan = plan_pools(
        groups,
        KVFormat.F32,
        16,
        budget_bytes=None,
        max_model_len=1024,
        max_num_seqs=4,
        max_chunk=64,
        frees_window=True,
    )
    assert plan.block_bytes == (256, 256)
    assert plan.num_blocks == (4 * 64, 4 * 7)  # ceil((31 + 64) / 16) + 1 = 7
    half = plan_pools(
        groups,
        KVFormat.F32,
        16,
        budget_bytes=plan.total_bytes // 2,
        max_model_len=1024,
        max_num_seqs=4,
        max_chunk=64,
        frees_window=True,
    )
    assert half.num_blocks == (2 * 64, 2 * 7)
    assert half.total_bytes <= plan.total_bytes // 2
    with pytest.raises(CapacityError, match="2,000 bytes is too small"):
        plan_pools(
            groups,
            KVFormat.F32,
            16,
            budget_bytes=2000,
            max_model_len=1024,
            max_num_seqs=4,
            max_chunk=64,
            frees_window=True,
        )


def test_tables_are_int32_rows_for_the_batch() -> None:
    blocks = SequenceBlocks(2, 7)
    assert all(t.dtype == np.int32 and t.shape == (7,) and (t == -1).all() for t in blocks.tables)
