"""The calls of one answer: one call object after the other becomes pieces.

Shared by the formats, which differ in what stands around the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Container

from headrace.server.parsing.call_object import CallObject
from headrace.server.parsing.pieces import Collector


class Calls:
    """Numbers the calls and writes their pieces. num_complete: calls that can be made."""

    __slots__ = ("_index", "_known", "_new_id", "_parallel", "_sink", "num_begun", "num_complete")

    def __init__(
        self, known: Container[str], sink: Collector, new_id: Callable[[], str], parallel: bool
    ) -> None:
        """known: names of the functions that may be called. new_id: gives a fresh id per call.
        parallel: whether there may be several; without, calls after the first complete one are
        read and left out."""
        self._known = known
        self._sink = sink
        self._new_id = new_id
        self._parallel = parallel
        self._index: int | None = None  # of the call being read; None: left out
        self.num_begun = 0
        self.num_complete = 0

    def new(self, *, tagged: bool) -> CallObject:
        """An object to be read with push; see CallObject."""
        return CallObject(self._known, tagged=tagged)

    def push(self, call: CallObject, text: str, start: int) -> int:
        """Reads text[start:] as part of the call. Returns the position behind what belongs to it.
        What has become certain of the call is written to the sink."""
        was_started, was_complete = call.started, call.complete
        end = call.push(text, start)
        if not call.started:
            return end
        if not was_started:
            self._start(call.name or "")
        fragment = call.take()
        if self._index is not None:
            self._sink.arguments(self._index, fragment)
            self.num_complete += call.complete and not was_complete
        return end

    def _start(self, name: str) -> None:
        if self.num_complete and not self._parallel:
            self._index = None
            return
        self._index = self.num_begun
        self.num_begun += 1
        self._sink.start(self._index, self._new_id(), name)
