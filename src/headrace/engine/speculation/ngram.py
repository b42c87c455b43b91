"""NgramDrafter: what followed the last time the newest tokens stood in prompt or output."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engine.generation import Generation
from headrace.engine.speculation.drafter import Ask, Draft

#: Lengths of the matches that are looked for, the longest first.
SIZES = (4, 3, 2)


class _Index:
    """Where each n-gram of one sequence ended last, and last but one."""

    __slots__ = ("_ends", "_num_seen")

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}
        self._num_seen = 0

    def find(self, tokens: list[int]) -> int | None:
        """Where the tokens behind the longest earlier match begin."""
        for end in range(self._num_seen + 1, len(tokens) + 1):
            for size in SIZES:
                if end >= size:
                    key = tuple(tokens[end - size : end])
                    last = self._ends.get(key)
                    self._ends[key] = (end, -1 if last is None else last[0])
        self._num_seen = len(tokens)
        for size in SIZES:
            found = self._ends.get(tuple(tokens[-size:]))
            if found is not None and found[1] >= 0:
                return found[1]
        return None


class NgramDrafter:
    """A Drafter without a model; its drafts are point masses."""

    def __init__(self) -> None:
        self._indexes: dict[Generation, _Index] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """See Drafter."""
        drafts = []
        for ask in asks:
            tokens = ask.generation.sequence.tokens
            start = self._indexes.setdefault(ask.generation, _Index()).find(tokens)
            drafts.append(Draft([] if start is None else tokens[start : start + ask.limit]))
        return drafts

    def kept(self, generation: Generation, num_kept: int) -> None:
        """Learns nothing from it."""

    def forget(self, generation: Generation) -> None:
        """See Drafter."""
        self._indexes.pop(generation, None)
