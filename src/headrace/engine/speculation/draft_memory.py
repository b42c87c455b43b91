"""DraftMemory: the KV blocks of a draft model, and which sample must make way for which.

Blocks go to samples oldest first. Where they run out, samples that nobody asks about now (paused,
preempted, switched off) lose theirs, least recently asked first, then the youngest of those asked
about. Losing them costs a sample nothing but catching up again. Knows no executor and no tokens.
"""

from __future__ import annotations

from headrace.engine.blocks import BlockManager
from headrace.engine.generation import Generation
from headrace.engine.prefix.reuse import PrefixReuse
from headrace.engine.prefix.tree import PrefixTree
from headrace.engine.sizing import peak_blocks
from headrace.engine.speculation.follower import Follower


class DraftMemory:
    """max_positions: longest context of the draft model. max_chunk: most rows of one sample that a
    step computes. num_ids: the draft model knows no others. keeps: whether what ended samples have
    computed is kept in a prefix tree, for others to begin behind."""

    def __init__(
        self,
        manager: BlockManager,
        max_positions: int,
        max_chunk: int,
        num_ids: int,
        *,
        keeps: bool,
    ) -> None:
        self.manager = manager
        self.prefixes = PrefixReuse(manager, PrefixTree(manager) if keeps else None)
        self._max_positions = max_positions
        self._max_chunk = max_chunk
        self._num_ids = num_ids
        self._followers: dict[Generation, Follower] = {}  # least recently asked about first

    def follower(self, generation: Generation, call: int) -> Follower:
        """The follower of a sample, up to date and with tables, unless it is off."""
        follower = self._followers.pop(generation, None) or Follower(generation)
        self._followers[generation] = follower
        follower.asked_at = call
        follower.follow(self._num_ids)
        sequence = follower.sequence
        if sequence.num_tokens > self._max_positions:
            follower.off = True
        if follower.off:
            self.release(follower)
            return follower
        if sequence.blocks is None:
            self.prefixes.attach(sequence)
        if sequence.blocks is None:
            sequence.blocks = self.manager.open(self._max_positions)
        assert sequence.blocks is not None
        if self.manager.trims:  # all that is computed is the target's: nothing is taken back
            self.manager.trim(sequence.blocks, sequence.num_computed_tokens)
        return follower

    def catch_up(self, follower: Follower) -> None:
        """Moves a sample on to where others with the same tokens have come, this very step's
        included."""
        if follower.num_missing > self.manager.block_size:
            self.prefixes.catch_up(follower.sequence)

    def forget(self, generation: Generation) -> None:
        """Frees what a sample that has ended holds, if anything."""
        follower = self._followers.pop(generation, None)
        if follower is not None:
            if not follower.off:
                follower.follow(self._num_ids)  # so that only what was kept is kept
            self.release(follower)

    def release(self, follower: Follower, *, keep: bool = True) -> None:
        """Takes all blocks from a sample, which stays known. keep: what it computed may serve
        others."""
        sequence = follower.sequence
        if sequence.blocks is not None:
            if keep:
                self.prefixes.keep(sequence)
            self.manager.close(sequence.blocks)
            sequence.blocks = None
        sequence.num_computed_tokens = sequence.num_stored_tokens = 0

    def extend(self, follower: Follower, rows: int, drafts: int, unserved: list[Follower]) -> int:
        """Blocks for the next `rows` positions and for the drafts behind them (the last of which is
        never computed). The number of drafts there is room for; −1 = no room for the rows, nothing
        was given out.

        A sample begins only when all it lacks fits, so that two of them never wait for each other
        half done. unserved: asked about in this call, not served yet; the younger ones make way.
        """
        want = rows + max(drafts - 1, 0)
        while not self._fits(follower, want) and self._reclaim(follower, unserved):
            pass
        if not self._fits(follower, want):
            want = rows
            if not self._fits(follower, want):
                return -1
        sequence, blocks = follower.sequence, follower.sequence.blocks
        assert blocks is not None
        first, end = sequence.num_computed_tokens, sequence.num_computed_tokens + want
        start = max(first, sequence.num_stored_tokens)
        if end > start:
            self.manager.extend(blocks, start, end - start)
        self.prefixes.granted(sequence, first, first + rows)
        return min(drafts, want - rows + 1)

    def _fits(self, follower: Follower, rows: int) -> bool:
        """Whether the pools have room for all tokens of the sample, and now for its next `rows`."""
        sequence, manager = follower.sequence, self.manager
        blocks = sequence.blocks
        assert blocks is not None
        end = sequence.num_computed_tokens + rows
        positions, chunk = max(end, sequence.num_tokens), max(rows, self._max_chunk)
        for group, pool in enumerate(manager.pools):
            window, size = manager.windows[group], manager.block_size
            peak = peak_blocks(window, positions, chunk, size, frees_window=True)
            held = blocks.num_columns[group] - blocks.first_columns[group]
            if peak - held > pool.num_free + pool.num_reclaimable:
                return False
        start = max(sequence.num_computed_tokens, sequence.num_stored_tokens)
        if end <= start:
            return True
        self.prefixes.make_room(blocks, start, end - start)
        return manager.fit(blocks, start, end - start) == end - start

    def _reclaim(self, wanting: Follower, unserved: list[Follower]) -> bool:
        """Frees the blocks of one sample. False: there is none that makes way."""
        for follower in self._followers.values():
            if follower.asked_at != wanting.asked_at and follower.sequence.blocks is not None:
                self.release(follower)
                return True
        place = wanting.sequence.place
        for follower in sorted(unserved, key=lambda f: f.sequence.place, reverse=True):
            blocks = follower.sequence.blocks
            if blocks is not None and any(blocks.num_columns) and follower.sequence.place > place:
                self.release(follower)
                follower.sequence.blocks = self.manager.open(self._max_positions)
                return True
        return False

    def check(self) -> None:
        """Raises AssertionError when counts and holders disagree, or something was never freed."""
        if self.prefixes.tree is not None:
            self.prefixes.tree.check()
        self.manager.check(
            f.sequence.blocks for f in self._followers.values() if f.sequence.blocks is not None
        )
