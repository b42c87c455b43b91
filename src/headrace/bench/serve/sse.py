"""Server-sent events: bytes in, data of complete events out. Knows nothing of JSON or of time.

Follows the WHATWG rules for what matters to a client of completions: LF, CRLF and CR end a line,
an empty line ends an event, `data:` lines of one event are joined by LF, comments (pings) and other
fields are passed over, and an event without its empty line never happened.
"""

from __future__ import annotations

from headrace.bench.serve.failures import Failure, RequestFailed

#: An event of this many bytes is not an answer any more.
MAX_EVENT_BYTES = 8 << 20


class SSEParser:
    """Fed with what arrives, in pieces of any size."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line: list[bytes] = []  # pieces of a line that has not ended
        self._data: list[bytes] = []  # data lines of an event that has not ended
        self._held_bytes = 0
        self._after_cr = False
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that `piece` completes, in order. Linear in its length. Raises
        RequestFailed (too_large) for an event above the limit."""
        if piece and (self._after_cr or b"\r" in piece):
            piece = self._without_cr(piece)
        if b"\n" not in piece:
            self._line.append(piece)
            self._hold(len(piece))
            return []
        if self._line:
            piece = b"".join((*self._line, piece))
        lines = piece.split(b"\n")
        rest = lines.pop()
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        events = self._dispatch(lines)
        self._line = [rest] if rest else []
        self._held_bytes = sum(map(len, self._data))
        self._hold(len(rest))
        return events

    def _dispatch(self, lines: list[bytes]) -> list[bytes]:
        events = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(data[0] if len(data) == 1 else b"\n".join(data))
                    data.clear()
            elif line.startswith(b"data:"):
                data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                data.append(b"")
        return events

    def _without_cr(self, piece: bytes) -> bytes:
        """CRLF and CR as LF; an LF that follows a CR of the piece before belongs to it."""
        if self._after_cr:
            piece = piece.removeprefix(b"\n")
        self._after_cr = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        if self._held_bytes > self._max_event_bytes:
            raise RequestFailed(
                Failure.TOO_LARGE, f"an event of more than {self._max_event_bytes} bytes"
            )
