"""HTTP/1.1 responses: bytes in, head and body out. Knows nothing of sockets, events or time.

Small and strict on purpose: one answer after another on one connection, no compression (we ask for
none), no upgrades. A server that does not speak HTTP gets RequestFailed (bad_http), never a hang:
every state either consumes bytes or waits for more within a limit.
"""

from __future__ import annotations

import re
from enum import Enum

from headrace.bench.serve.failures import Failure, RequestFailed

MAX_HEAD_BYTES = 64 << 10
_MAX_CHUNK_LINE_BYTES = 4096
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: .*)?")
_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")
_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})\r\n")
_LENGTH = re.compile(r"\d{1,18}")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")


class _State(Enum):
    HEAD = 0
    CHUNK_SIZE = 1
    CHUNK = 2
    CHUNK_END = 3
    TRAILERS = 4
    LENGTH = 5
    UNTIL_CLOSE = 6
    DONE = 7


class ResponseParser:
    """One response. status: 0 until the head is there. headers: lower-case names; of a repeated
    one, the last. keep_alive: whether the connection may carry another request after `complete`."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.keep_alive = False
        self._state = _State.HEAD
        self._buffer = b""
        self._left = 0

    @property
    def complete(self) -> bool:
        """The whole response has arrived."""
        return self._state is _State.DONE

    @property
    def until_close(self) -> bool:
        """Only the end of the connection ends the body."""
        return self._state is _State.UNTIL_CLOSE

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` carries. Raises RequestFailed (bad_http, too_large)."""
        if self._state is _State.CHUNK_SIZE and not self._buffer:
            # Nearly always one whole chunk: a server writes a token, we read it.
            line = _SIZE_LINE.match(data)
            size = int(line[1], 16) if line else 0
            if line and size and len(data) == line.end() + size + 2 and data.endswith(b"\r\n"):
                return data[line.end() : -2]
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        if self._state is _State.HEAD:
            data = self._head(data)
            if self._state is _State.HEAD:
                return b""
        match self._state:
            case _State.UNTIL_CLOSE:
                return data
            case _State.LENGTH:
                return self._fixed(data)
            case _State.DONE:
                if data:
                    raise _bad("bytes after the end of the response")
                return b""
            case _:
                return self._chunked(data)

    def closed(self) -> None:
        """The peer closed. Raises RequestFailed (disconnected) unless that ends the response."""
        if self._state is _State.UNTIL_CLOSE:
            self._state = _State.DONE
        if self._state is not _State.DONE:
            where = "before its answer" if self.status == 0 else "in the middle of its answer"
            raise RequestFailed(Failure.DISCONNECTED, f"the server closed the connection {where}")

    # ---- head -----------------------------------------------------------------------------------

    def _head(self, data: bytes) -> bytes:
        """Parses a head when it is whole; returns what follows it."""
        while True:
            if not b"HTTP/1."[: len(data)] == data[:7]:
                raise _bad(f"not HTTP/1: {data[:40]!r}")
            end = _END_OF_HEAD.search(data)
            if end is None or end.start() > MAX_HEAD_BYTES:
                if len(data) > MAX_HEAD_BYTES:
                    raise RequestFailed(Failure.TOO_LARGE, "a response head above 64 KiB")
                self._buffer = data
                return b""
            version, status = self._read_head(data[: end.start()])
            data = data[end.end() :]
            if status >= 200:
                break  # 100 to 199 only announce the response
            if status == 101:
                raise _bad("status 101 was not asked for")
            if not data:
                return b""
        self.status = status
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (version == 1 or "keep-alive" in connection)
        self._state = self._body_state()
        return data

    def _read_head(self, head: bytes) -> tuple[int, int]:
        first, *lines = head.split(b"\n")
        match = _STATUS_LINE.fullmatch(first.rstrip(b"\r"))
        if match is None:
            raise _bad(f"no status line: {first[:80]!r}")
        self.headers = {}
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon:
                raise _bad(f"no header: {line[:80]!r}")
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        return int(match[1]), int(match[2])

    def _body_state(self) -> _State:
        if self.status in (204, 304):
            return _State.DONE
        if coding := self.headers.get("transfer-encoding"):
            if coding.lower() != "chunked":
                raise _bad(f"transfer-encoding {coding[:40]!r}")
            return _State.CHUNK_SIZE
        if (length := self.headers.get("content-length")) is not None:
            if not _LENGTH.fullmatch(length):
                raise _bad(f"content-length {length[:40]!r}")
            self._left = int(length)
            return _State.LENGTH if self._left else _State.DONE
        self.keep_alive = False
        return _State.UNTIL_CLOSE

    # ---- body -----------------------------------------------------------------------------------

    def _fixed(self, data: bytes) -> bytes:
        if len(data) > self._left:
            raise _bad("more bytes than content-length says")
        self._left -= len(data)
        if not self._left:
            self._state = _State.DONE
        return data

    def _chunked(self, data: bytes) -> bytes:
        """Walks over as many chunks as `data` holds."""
        body: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            match self._state:
                case _State.CHUNK:
                    piece = data[at : at + self._left]
                    body.append(piece)
                    at += len(piece)
                    self._left -= len(piece)
                    if not self._left:
                        self._state = _State.CHUNK_END
                case _State.DONE:
                    raise _bad("bytes after the end of the response")
                case _:
                    newline = data.find(b"\n", at)
                    if newline < 0:
                        self._buffer = data[at:]
                        if len(self._buffer) > _MAX_CHUNK_LINE_BYTES:
                            raise _bad("a chunk's size line has no end")
                        break
                    self._chunk_line(data[at:newline].rstrip(b"\r"))
                    at = newline + 1
        return body[0] if len(body) == 1 else b"".join(body)

    def _chunk_line(self, line: bytes) -> None:
        match self._state:
            case _State.CHUNK_SIZE:
                size = line.partition(b";")[0].strip()
                if not _SIZE.fullmatch(size):
                    raise _bad(f"a chunk of size {line[:40]!r}")
                self._left = int(size, 16)
                self._state = _State.CHUNK if self._left else _State.TRAILERS
            case _State.CHUNK_END:
                if line:
                    raise _bad("a chunk is longer than its size says")
                self._state = _State.CHUNK_SIZE
            case _:
                if not line:
                    self._state = _State.DONE


def _bad(detail: str) -> RequestFailed:
    return RequestFailed(Failure.BAD_HTTP, detail)
