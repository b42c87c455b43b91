"""A light load generator for tools/bench_server.py: raw sockets, no JSON per chunk, one thread.

    python tools/stream_client.py '{"port": 8000, "body": {…}, "total": 32, "concurrency": 32}'

Sends `total` requests, `concurrency` at a time, each on a connection of its own that is used again,
and prints one JSON object: wall seconds, CPU seconds of this process, output tokens (from the
usage blocks), seconds to the first token of each request, and errors.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

_TOKENS = re.compile(rb'"completion_tokens":(\d+)')
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_FIRST = re.compile(rb'"(?:text|content)":"[^"]')


@dataclass(slots=True, eq=False)
class Connection:
    """sent_s: when the current request left. tail: the last bytes received, so that patterns
    across two reads are seen."""

    sock: socket.socket
    sent_s: float = 0.0
    first_s: float | None = None
    head: bytes = b""
    tail: bytes = b""
    num_body: int = 0
    in_body: bool = False
    length: int | None = None


@dataclass(slots=True)
class Outcome:
    """Of all requests."""

    tokens: int = 0
    done: int = 0
    first_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def run(port: int, body: dict[str, Any], total: int, concurrency: int) -> dict[str, Any]:
    """Runs the load against 127.0.0.1:port. `body` is sent to /v1/completions as it is."""
    payload = json.dumps(body).encode()
    request = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + f"content-length: {len(payload)}\r\n\r\n".encode() + payload
    )  # fmt: skip
    outcome, selector = Outcome(), selectors.DefaultSelector()
    connections = [_connect(port) for _ in range(min(concurrency, total))]
    left = total - len(connections)
    cpu, began = time.process_time(), time.monotonic()
    for connection in connections:
        selector.register(connection.sock, selectors.EVENT_READ, connection)
    for connection in connections:
        _send(connection, request)
    open_ = len(connections)
    while open_:
        for key, _ in selector.select():
            connection = key.data
            if not _receive(connection, outcome, bool(body.get("stream"))):
                continue
            if left and connection.sock.fileno() >= 0:
                left -= 1
                _send(connection, request)
            else:
                selector.unregister(connection.sock)
                connection.sock.close()
                open_ -= 1
    return {
        "wall_s": time.monotonic() - began,
        "client_cpu_s": time.process_time() - cpu,
        "tokens": outcome.tokens,
        "done": outcome.done,
        "first_s": outcome.first_s,
        "errors": outcome.errors[:5],
        "num_errors": len(outcome.errors),
    }


def _connect(port: int) -> Connection:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(sock)


def _send(connection: Connection, request: bytes) -> None:
    connection.first_s, connection.length = None, None
    connection.head = connection.tail = b""
    connection.num_body, connection.in_body = 0, False
    connection.sent_s = time.monotonic()
    connection.sock.sendall(request)


def _receive(connection: Connection, outcome: Outcome, stream: bool) -> bool:
    """Reads what is there; true when the answer is complete, or the connection broken."""
    data = connection.sock.recv(1 << 16)
    if not data:
        outcome.errors.append("the server closed the connection")
        return True
    if not connection.in_body:
        connection.head += data
        head, found, data = connection.head.partition(b"\r\n\r\n")
        if not found:
            return False
        connection.in_body = True
        if b" 200 " not in head[:16]:
            outcome.errors.append(head[:60].decode("latin-1"))
        length = _LENGTH.search(head)
        connection.length = None if length is None else int(length[1])
    connection.num_body += len(data)
    if connection.first_s is None and _FIRST.search(data):
        connection.first_s = time.monotonic() - connection.sent_s
    connection.tail = tail = (connection.tail + data)[-2048:]
    complete = (
        tail.endswith(b"0\r\n\r\n") if connection.length is None
        else connection.num_body >= connection.length
    )  # fmt: skip
    if complete:
        _account(connection, outcome, stream)
    return complete


def _account(connection: Connection, outcome: Outcome, stream: bool) -> None:
    counted = _TOKENS.search(connection.tail)
    if counted is None or (stream and b"data: [DONE]" not in connection.tail):
        outcome.errors.append(connection.tail[-200:].decode("latin-1"))
        return
    outcome.done += 1
    outcome.tokens += int(counted[1])
    if connection.first_s is not None:
        outcome.first_s.append(connection.first_s)


if __name__ == "__main__":
    json.dump(run(**json.loads(sys.argv[1])), sys.stdout)
