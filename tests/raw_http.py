"""HTTP by hand, for what no client library would send: bytes out, an answer or the end in."""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """status 0: the connection ended without an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    """One connection. receive_buffer: the system's, in bytes, so that a reader can be slow."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, receive_buffer: int = 0) -> None:
        parts = urlsplit(url)
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect((parts.hostname or "", parts.port or 80))
        self._buffer = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, path: str, body: bytes | dict[str, Any], headers: str = "") -> None:
        """Sends a JSON request."""
        self.send(request("POST", path, body, headers))

    def reset(self) -> None:
        """Ends the connection at once, by a RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def answer(self, method: str = "POST") -> Answer:
        """The next answer."""
        while True:
            head = self._until(b"\r\n\r\n")
            if head is None:
                return Answer(0, {}, self._buffer)
            lines = head.decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
            if status != 100:
                break
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if method == "HEAD" or status in (204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, self._chunks())
        if "content-length" in headers:
            return Answer(status, headers, self._exactly(int(headers["content-length"])))
        return Answer(status, headers, self.rest())

    def some(self, num_bytes: int) -> bytes:
        """At least so many bytes of what comes, fewer at the end."""
        while len(self._buffer) < num_bytes and self._more():
            pass
        taken, self._buffer = self._buffer, b""
        return taken

    def peek(self, num_bytes: int) -> bytes:
        """The same, and it stays to be read."""
        self._buffer = self.some(num_bytes)
        return self._buffer

    def rest(self) -> bytes:
        """Everything until the connection ends."""
        while self._more():
            pass
        taken, self._buffer = self._buffer, b""
        return taken

    def closed_within(self, seconds: float) -> bool:
        """Whether the other side ends the connection, by whatever means, in so many seconds."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                if not self.socket.recv(65536):
                    return True
            except TimeoutError:
                return False
            except OSError:
                return True
        return False

    def _more(self) -> bool:
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._buffer:
            if not self._more():
                return None
        head, self._buffer = self._buffer.split(mark, 1)
        return head

    def _exactly(self, num_bytes: int) -> bytes:
        while len(self._buffer) < num_bytes and self._more():
            pass
        taken, self._buffer = self._buffer[:num_bytes], self._buffer[num_bytes:]
        return taken

    def _chunks(self) -> bytes:
        parts = []
        while (line := self._until(b"\r\n")) is not None:
            part = self._exactly(int(line.partition(b";")[0], 16) + 2)[:-2]
            if not part:
                break
            parts.append(part)
        return b"".join(parts)


def request(method: str, path: str, body: bytes | dict[str, Any] = b"", headers: str = "") -> bytes:
    """The bytes of a request. headers: more lines, each with its line end."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: headrace\r\n"
    if "content-type" not in headers.lower():
        head += "Content-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n{headers}\r\n".encode() + data


def exchange(url: str, data: bytes, method: str = "POST") -> Answer:
    """One request on a connection of its own."""
    with RawClient(url) as client:
        client.send(data)
        return client.answer(method)
