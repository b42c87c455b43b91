"""Stop strings: found across token borders, with text held back while a match is still possible.

The result depends on the text only, not on how it was cut into pieces: the match that ends first
wins, among those the longest. Text after a match is never released.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text through until a stop string appears. One per sample; mutated by push."""

    __slots__ = ("_firsts", "_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        """stops: non-empty strings. include_stop: whether the matched one is part of the text."""
        self._stops = tuple(stops)
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._include = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that is safe to release now. Sets `matched` when a stop string is complete."""
        if not self._stops or not piece or self.matched is not None:
            return piece if self.matched is None else ""
        text = self._held + piece
        if self._firsts.isdisjoint(text):  # no stop string begins in here (and none was held back)
            return text
        self._held = ""
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            return text[: start + len(self.matched)] if self._include else text[:start]
        keep = self._possible_start(text)
        if keep:
            self._held = text[-keep:]
            return text[:-keep]
        return text

    def flush(self) -> str:
        """The text still held back, at the end of a sample that did not match."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` with which some stop string begins."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if text[-length] not in self._firsts:
                continue
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
