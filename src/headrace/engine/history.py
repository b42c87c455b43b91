"""Kept histories: KV of finished sequences, held for the next turn of the same conversation.

A kept history is the ids of the computed positions and the block tables that hold them. The next
request of the session is matched by longest common token prefix and shares those blocks; writing
past the match copies the partly filled block first (blocks.py). Least recently used histories are
evicted when blocks are needed: a kept history never makes a request wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.engine.blocks import BlockManager, SequenceBlocks
from headrace.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class History:
    """tokens: ids of the positions that `blocks` holds, from position 0."""

    tokens: list[int]
    blocks: SequenceBlocks


class Histories:
    """Session key → kept history, least recently used first."""

    def __init__(self, manager: BlockManager) -> None:
        self._manager = manager
        self._kept: dict[str, History] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def holders(self) -> Iterator[SequenceBlocks]:
        """Block tables of all kept histories (for checks)."""
        return (history.blocks for history in self._kept.values())

    def filled(self) -> list[tuple[SequenceBlocks, int]]:
        """Block tables of all kept histories, with their number of positions."""
        return [(history.blocks, len(history.tokens)) for history in self._kept.values()]

    def keep(self, session: str, sequence: Sequence) -> None:
        """Takes over the sequence's blocks, in place of what the session kept before."""
        assert sequence.blocks is not None
        self.drop(session)
        tokens = sequence.tokens[: sequence.num_computed_tokens]
        self._kept[session] = History(tokens, sequence.blocks)
        sequence.blocks = None

    def drop(self, session: str) -> None:
        """Frees what the session kept, if anything."""
        history = self._kept.pop(session, None)
        if history is not None:
            self._manager.close(history.blocks)

    def evict_oldest(self) -> bool:
        """Drops the least recently used history; False when there is none."""
        for session in self._kept:
            self.drop(session)
            return True
        return False

    def attach(self, sequence: Sequence) -> None:
        """Gives a sequence without blocks the kept prefix of its tokens, or nothing.

        Sets blocks, num_computed_tokens, num_stored_tokens, num_cached_tokens and, when something
        was kept but could not be used, cache_note.

            kept      |a b c d e f|        match m = 4, the prompt goes on differently:
            prompt    |a b c d x y z|      computed = stored = 4
            prompt    |a b c d|            match m = 4 = the whole prompt:
                                           computed = 3, stored = 4; row 3 is computed, not written
        """
        sequence.num_cached_tokens = 0
        sequence.cache_note = None
        if sequence.session is None or sequence.session not in self._kept:
            return
        if not sequence.reuses_history:
            sequence.cache_note = "prompt logprobs need the logits of every prompt position"
            return
        history = self._kept.pop(sequence.session)
        self._kept[sequence.session] = history  # now the most recently used
        match = common_prefix(history.tokens, sequence.tokens)
        start = min(match, sequence.num_tokens - 1)
        if start == 0:
            if match == 0:
                sequence.cache_note = "the first token differs from the kept history"
            return
        oldest = self._manager.can_enter(history.blocks, start)
        if oldest is not None:
            sequence.cache_note = (
                f"the history differs from position {match} on, but a sliding-window group keeps "
                f"only positions from {oldest} on, so everything was computed again"
            )
            return
        blocks = self._manager.fork(history.blocks, match, sequence.max_num_positions)
        if blocks is None:
            sequence.cache_note = "no free run of blocks for a copy of the kept history"
            return
        sequence.blocks = blocks
        sequence.num_computed_tokens = start
        sequence.num_stored_tokens = match
        sequence.num_cached_tokens = start


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # a[:low] == b[:low] always holds
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
