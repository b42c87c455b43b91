"""Where the last two tokens of a text stood before: hash chains, newest place first.

    heads [2^k]      bucket of a pair → its newest place        places are positions of the pair's
    previous [n]     place → the place before it in the bucket  second token

A bucket may mix pairs; whoever walks it compares tokens anyway. The whole prompt is entered at once
(vectorised), then one token at a time; both tables grow by doubling, so a token costs amortised
O(1) and at most 12 bytes. Knows token ids only.
"""

from __future__ import annotations

from array import array

import numpy as np

_FIRST, _SECOND, _SHIFT = 0x9E3779B1, 0x85EBCA77, 15  # of the pair's hash; < 2^63 for 31-bit ids
_SMALLEST = 1024


class NgramIndex:
    """Places of pairs in one growing list of tokens, which is passed in and not kept."""

    __slots__ = ("_heads", "_mask", "_previous")

    def __init__(self, tokens: list[int]) -> None:
        self._heads = array("i")
        self._previous = array("i")
        self._mask = 0
        self._build(tokens)

    def __len__(self) -> int:
        """Tokens entered."""
        return len(self._previous)

    @property
    def num_bytes(self) -> int:
        """Memory of both tables."""
        return sum(table.itemsize * len(table) for table in (self._heads, self._previous))

    def add(self, tokens: list[int]) -> None:
        """Enters the token behind those that are in; there must be one."""
        place = len(self._previous)
        if place > self._mask:
            self._build(tokens[: place + 1])
            return
        if place == 0:
            self._previous.append(-1)
            return
        bucket = (tokens[place - 1] * _FIRST + tokens[place] * _SECOND) >> _SHIFT & self._mask
        self._previous.append(self._heads[bucket])
        self._heads[bucket] = place

    def longest_match(
        self, tokens: list[int], *, max_length: int, max_places: int, max_room: int
    ) -> tuple[int, int]:
        """(place, length) of the longest earlier run that ends like the tokens entered; (-1, 0)
        when not even the last two stood there before.

        At most max_places of their places are looked at, the newest first; lengths count up to
        max_length. Of equally long runs the newest counts that is followed by max_room tokens, or
        by most.
        """
        previous = self._previous
        end = len(previous) - 1
        if end < 1:
            return -1, 0
        last, before = tokens[end], tokens[end - 1]
        best, best_length, best_room = -1, 1, 0
        place = previous[end]
        for _ in range(max_places):
            if place < 0:
                break
            if tokens[place] == last and tokens[place - 1] == before:
                length = 2
                while (
                    length < max_length
                    and length <= place
                    and tokens[place - length] == tokens[end - length]
                ):
                    length += 1
                room = min(end - place, max_room)
                if length > best_length or (length == best_length and room > best_room):
                    best, best_length, best_room = place, length, room
                if length == max_length and room == max_room:
                    break
            place = previous[place]
        return (best, best_length) if best >= 0 else (-1, 0)

    def _build(self, tokens: list[int]) -> None:
        """Enters all of `tokens` into tables with room for as many again."""
        size = _SMALLEST
        while size <= len(tokens):
            size *= 2
        self._mask = size - 1
        heads = np.full(size, -1, np.int32)
        previous = np.full(len(tokens), -1, np.int32)
        if len(tokens) > 1:
            ids = np.array(tokens, np.int64)
            buckets = ((ids[:-1] * _FIRST + ids[1:] * _SECOND) >> _SHIFT & self._mask).astype(
                np.int32
            )
            order = np.argsort(buckets, kind="stable")
            ordered = buckets[order]
            same = ordered[1:] == ordered[:-1]
            previous[order[1:][same] + 1] = order[:-1][same] + 1
            newest = np.append(~same, True)
            heads[ordered[newest]] = order[newest] + 1
        self._heads = array("i", heads.tobytes())
        self._previous = array("i", previous.tobytes())
