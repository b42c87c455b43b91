"""Pools: the blocks of one KV group, how many hold each, which are free. Ids and counts only."""

from __future__ import annotations

import random
from array import array


class BlockPool:
    """The blocks of one group: reference counts and a free list (last freed, first reused, so that
    untouched memory stays untouched). A block is free exactly when its count is 0.

    tree_counts: the part of each count that is the prefix tree's. num_reclaimable: blocks that
    nobody but the tree holds.
    """

    __slots__ = (
        "_fresh",
        "_recycled",
        "num_blocks",
        "num_reclaimable",
        "ref_counts",
        "tree_counts",
    )

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_counts = array("i", bytes(4 * num_blocks))
        self.tree_counts = array("i", bytes(4 * num_blocks))
        self.num_reclaimable = 0
        self._recycled: list[int] = []
        self._fresh = 0  # blocks from here on were never used

    @property
    def num_free(self) -> int:
        return len(self._recycled) + self.num_blocks - self._fresh

    def take(self) -> int:
        """A free block, now with one holder. The caller made sure that there is one."""
        if self._recycled:
            block = self._recycled.pop()
        else:
            assert self._fresh < self.num_blocks, "take from an empty pool"
            block = self._fresh
            self._fresh += 1
        self.ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more holder."""
        count = self.ref_counts[block]
        assert count > 0, "share of a free block"
        self.ref_counts[block] = count + 1
        if count == self.tree_counts[block]:
            self.num_reclaimable -= 1

    def release(self, block: int) -> None:
        """One holder less; the last one frees the block."""
        count = self.ref_counts[block] - 1
        in_tree = self.tree_counts[block]
        assert count >= in_tree, "release of a block that the caller does not hold"
        self.ref_counts[block] = count
        if count == 0:
            self._recycled.append(block)
        elif count == in_tree:
            self.num_reclaimable += 1

    def share_with_tree(self, block: int) -> None:
        """The prefix tree becomes one more holder of a block that somebody holds."""
        assert self.ref_counts[block] > 0, "share of a free block"
        self.ref_counts[block] += 1
        self.tree_counts[block] += 1

    def release_from_tree(self, block: int) -> None:
        """The tree holds it once less; the last holder of all frees the block."""
        in_tree = self.tree_counts[block] - 1
        assert in_tree >= 0, "release of a block that the tree does not hold"
        count = self.ref_counts[block] - 1
        self.tree_counts[block] = in_tree
        self.ref_counts[block] = count
        if count == 0:
            self._recycled.append(block)
            self.num_reclaimable -= 1

    def scatter(self, seed: int) -> None:
        """Shuffles the free list, so that neighbours in a table lie anywhere (for checks)."""
        free = [*range(self._fresh, self.num_blocks), *self._recycled]
        random.Random(seed).shuffle(free)
        self._fresh, self._recycled = self.num_blocks, free

    def free_blocks(self) -> list[int]:
        """Ids of all free blocks (for checks)."""
        return [*self._recycled, *range(self._fresh, self.num_blocks)]


class RunPool(BlockPool):
    """A pool that hands out runs of neighbouring blocks, lowest place first (first fit)."""

    __slots__ = ("_used",)

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._fresh = num_blocks  # the free list of the base class is not used
        self._used = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        return self._used.count(0)

    def find_run(self, length: int) -> int:
        """First block of a free run, or −1. Changes nothing."""
        return self._used.find(bytes(length)) if length else 0

    def take_run(self, length: int) -> range:
        """Blocks of a free run, each now with one holder. find_run said that there is one."""
        start = self.find_run(length)
        assert start >= 0, "take_run without a free run"
        return self._take(start, length)

    def _take(self, start: int, length: int) -> range:
        run = range(start, start + length)
        for block in run:
            self.ref_counts[block] = 1
            self._used[block] = 1
        return run

    def longest_run(self, own: range) -> int:
        """Blocks of the longest run that could be had by whoever gives up `own`."""
        used = self._used[:]
        used[own.start : own.stop] = bytes(len(own))
        return max(map(len, used.split(b"\1")))

    def move_run(self, own: range, length: int) -> range:
        """Gives up `own` for a run of `length` blocks, at the same place if that is possible.
        longest_run(own) said that there is one."""
        for block in own:
            self.release(block)
        same = self._used[own.start : own.start + length]
        if own and len(same) == length and not any(same):
            return self._take(own.start, length)
        return self.take_run(length)

    def release(self, block: int) -> None:
        assert self.ref_counts[block] == 1, "release of a free block"
        self.ref_counts[block] = 0
        self._used[block] = 0

    def free_blocks(self) -> list[int]:
        return [b for b, used in enumerate(self._used) if not used]
