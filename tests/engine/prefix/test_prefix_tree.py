"""Rules of the prefix tree, each small enough to follow on paper (blocks of 4 positions)."""

from __future__ import annotations

from engine.toy import FULL
from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.tree import PrefixTree


def made(num_blocks: int = 32) -> tuple[BlockManager, PrefixTree]:
    manager = BlockManager([FULL], [num_blocks], 4, 64)
    return manager, PrefixTree(manager)


def computed(manager: BlockManager, num_positions: int) -> SequenceBlocks:
    blocks = manager.open(64)
    assert blocks is not None
    manager.extend(blocks, 0, num_positions)
    return blocks


def run(*ranges: tuple[int, int]) -> list[int]:
    return [token for first, end in ranges for token in range(first, end)]


def test_what_a_sequence_computed_is_shared_with_one_that_begins_alike() -> None:
    manager, tree = made()
    first = computed(manager, 10)
    tokens = run((0, 10))
    assert tree.insert(tokens, first, 10) == 10
    manager.close(first)
    assert manager.free_counts == (29,)
    assert manager.pools[0].num_reclaimable == 3
    match = tree.match([*tokens[:6], 99, 98])
    assert (match.num_matched, match.num_stored, match.start, match.short_reason) == (6, 6, 6, None)
    second = tree.share(match)
    assert second.held(0) == [0, 1]
    assert manager.pools[0].num_reclaimable == 1
    manager.extend(second, 6, 2)
    assert second.held(0) == [0, 3]
    assert manager.take_copies() == [(0, 1, 3)]
    assert tree.insert([*tokens[:6], 99, 98], second, 8) == 4  # its second block is new
    tree.check()
    manager.check([second])
    assert tree.num_nodes == 3
    assert tree.num_tokens == 14
