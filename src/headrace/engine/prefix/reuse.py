"""PrefixReuse: what the scheduler and the step do with the prefix tree, told in sequences.

    waiting ─ attach ─▶ running ─ granted ─▶ step ─ settle ─▶ … ─ keep ─▶ finished, preempted
              match                promise                       insert

The tree itself (tree.py) knows tokens and blocks and nothing of sequences; without one (`tree`
None: caching is off) every call here does nothing. A sequence whose salt is None takes no part.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.prefix.pins import Pins
from headrace.engine.prefix.tree import PrefixTree
from headrace.engine.request import Sequence


class PrefixReuse:
    """One per scheduler. Mutates sequences (blocks and counts) only in `attach`."""

    def __init__(self, manager: BlockManager, tree: PrefixTree | None) -> None:
        self._manager = manager
        self.tree = tree
        self.pins = None if tree is None else Pins(manager, tree)
        self._block_size = manager.block_size
        self._windowed = any(window is not None for window in manager.windows)

    # ---- what a newcomer finds ---------------------------------------------------------------

    def attach(self, sequence: Sequence) -> None:
        """Gives a sequence without blocks those of the longest cached prefix of its tokens, or
        nothing.

        Sets blocks, num_computed_tokens, num_stored_tokens, branch and, where less than what
        matches could be used, cache_note; the first time, num_cached_tokens too.

            cached    |a b c d e f|        four tokens match, the prompt goes on differently:
            prompt    |a b c d x y z|      computed = stored = 4
            prompt    |a b c d|            the whole prompt matches:
                                           computed = 3, stored = 4; row 3 is computed, not written
        """
        sequence.cache_note = None
        sequence.branch = 0
        tree, salt = self.tree, sequence.salt
        if tree is None or salt is None:
            return
        if sequence.anew_because is not None:
            if tree.peek(sequence.tokens, salt):
                sequence.cache_note = sequence.anew_because
            return
        match = tree.match(sequence.tokens, salt)
        sequence.cache_note = match.short_reason
        if match.num_matched > match.num_stored:
            sequence.branch = match.num_matched
        if sequence.num_preemptions == 0:  # later it may find what it computed itself
            sequence.num_cached_tokens = match.start
        if match.start == 0:
            return
        sequence.blocks = tree.share(match)
        sequence.num_computed_tokens = match.start
        sequence.num_stored_tokens = match.num_stored

    def catch_up(self, sequence: Sequence) -> None:
        """Moves a sequence in the middle of its prompt to where another one with the same prompt
        has come meanwhile, in place of computing the same a second time."""
        computed, cached = sequence.num_computed_tokens, sequence.num_cached_tokens
        if self.cached_length(sequence) < computed + self._block_size:
            return
        assert sequence.blocks is not None
        self._manager.close(sequence.blocks)
        sequence.blocks = None
        self.attach(sequence)
        sequence.num_cached_tokens = cached + sequence.num_computed_tokens - computed

    def cached_length(self, sequence: Sequence) -> int:
        """Positions that `attach` would find now; changes nothing."""
        if self.tree is None or sequence.salt is None or sequence.anew_because is not None:
            return 0
        return self.tree.peek(sequence.tokens, sequence.salt)

    # ---- what is left for others -------------------------------------------------------------

    def granted(self, sequence: Sequence, start: int, end: int) -> None:
        """Positions [start, end) will be computed by the step being scheduled: whole blocks of the
        prompt are shared from now on, in this very step.

        With sliding windows only where a later request will want to enter: at the prompt's end,
        and at the last block border before it left a path that others had taken (branch).
        """
        tree, salt = self.tree, sequence.salt
        num_prompt = sequence.num_prompt_tokens
        if tree is None or salt is None or start >= num_prompt:
            return
        assert sequence.blocks is not None
        if not self._windowed:
            tree.promise(sequence.tokens, sequence.blocks, min(end, num_prompt), start, salt=salt)
            return
        for length, entry in self._entries(sequence, start, end):
            tree.promise(
                sequence.tokens, sequence.blocks, length, start, salt=salt, entry_from=entry
            )

    def _entries(self, sequence: Sequence, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(whole blocks up to, oldest position to enter at) that a chunk makes possible: its window
        blocks reach back from its own start only."""
        size = self._block_size
        branch = sequence.branch // size * size
        if branch and start <= branch < end:
            yield branch, branch
        whole = sequence.num_prompt_tokens // size * size
        last = min(whole, sequence.num_prompt_tokens - 1)
        if whole and start <= last < end:
            yield whole, last

    def settle(self) -> None:
        """The step's positions are in memory now."""
        if self.tree is not None:
            self.tree.settle()

    def forget(self, sequence: Sequence) -> None:
        """Takes back what a sequence left: it is not known to be sound."""
        if self.tree is not None and sequence.salt is not None:
            self.tree.forget(sequence.tokens, sequence.salt)

    def keep(self, sequence: Sequence) -> None:
        """Leaves everything a sequence has computed, its partly filled last block included, to
        whoever comes later. The sequence keeps its own hold until its tables are closed."""
        tree, salt, computed = self.tree, sequence.salt, sequence.num_computed_tokens
        if tree is None or salt is None or sequence.blocks is None or computed == 0:
            return
        tree.insert(sequence.tokens, sequence.blocks, computed, salt=salt, entry_from=0)

    # ---- room ---------------------------------------------------------------------------------

    def make_room(self, blocks: SequenceBlocks, start: int, num_tokens: int) -> None:
        """Evicts what a holder lacks for positions [start, start + num_tokens), if it can."""
        if self.tree is None:
            return
        missing = self._manager.missing(blocks, start, num_tokens)
        if any(missing):
            self.tree.evict(missing)

    def give_way(self) -> bool:
        """The last resort for a sequence that runs alone and cannot advance: the oldest pin goes,
        and when there is none, everything: then a block that it shares with nobody but the tree
        needs no copy to be written. False: there was nothing to give."""
        if self.tree is None or self.pins is None:
            return False
        if self.pins.break_oldest():
            return True
        had = self.tree.num_nodes > 0
        self.tree.clear()
        return had

    def clear(self) -> None:
        """Forgets everything that is not pinned."""
        if self.tree is not None and self.pins is not None:
            self.tree.clear()
            self.pins.replant()

    def holders(self) -> list[SequenceBlocks]:
        """Block tables held for pins (for checks)."""
        return [] if self.pins is None else self.pins.holders()
