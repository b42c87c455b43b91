"""Connection: one client's socket, with the limits that the HTTP library leaves open.

Whatever a stranger could make the server keep is bounded: the size and the time of a request's
head, the time of its body, requests sent ahead of their turn, connections, and bytes that wait for
a reader who does not read. Knows no routes, and no application: what its refusals look like, it is
told. The server listens with it, and so does `headrace ui`.

    waiting ─ first byte ─▶ head ─ blank line ─▶ body ─ last byte ─▶ answer ─▶ waiting
       idle_s              head_s               body_s             the request's own limits
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

#: Seconds between two looks at all connections.
SWEEP_INTERVAL_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """idle_s: silence between two requests. head_s, body_s: time for the head and the body of one
    request. reader_s: how long a reader may take nothing while something waits for it.
    max_head_bytes, max_headers: of one request. max_ahead: requests sent before their turn.
    max_connections: open at once; None = as many as there are."""

    reader_s: float
    idle_s: float = 65.0
    head_s: float = 20.0
    body_s: float = 75.0
    max_head_bytes: int = 64 << 10
    max_headers: int = 128
    max_ahead: int = 16
    max_connections: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client is sent away. status: of HTTP; message: one sentence; retry_after_s: when to
    come back, where that helps."""

    status: int
    message: str
    retry_after_s: int | None = None


#: What a refusal looks like: its content type, and its body.
Wording = Callable[[Refusal], tuple[str, bytes]]


def plain_words(refusal: Refusal) -> tuple[str, bytes]:
    """A line of text."""
    return "text/plain; charset=utf-8", f"{refusal.message}\n".encode()


class Phase(Enum):
    WAITING = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()


class Connection(HttpToolsProtocol):
    """uvicorn's connection within limits. `check_time` is to be called from time to time.
    socket_paths: under these it may become a web socket, which is then another object's. wording:
    of what it refuses."""

    def __init__(
        self,
        limits: ConnectionLimits,
        *args: Any,
        socket_paths: tuple[str, ...] = (),
        wording: Wording = plain_words,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._wording = wording
        self._socket_paths = socket_paths
        self._phase = Phase.WAITING
        self._since = time.monotonic()
        self._num_head_bytes = 0
        self._unparsed_head = 0  # bytes that came while the head was not yet complete
        self._upgrading = False
        self._running: RequestResponseCycle | None = None
        self._refusal: Refusal | None = None
        self._unsent = 0
        self._unsent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self._limits.max_connections
        if most is not None and len(self.connections) > most:
            self._refuse(Refusal(503, "Too many connections are open.", retry_after_s=1))

    def shutdown(self) -> None:
        """The server stops; what has not been sent completely is not waited for."""
        if self._phase in (Phase.HEAD, Phase.BODY):
            self._refuse(Refusal(503, "The server is shutting down."))
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tells the request that runs, which is not the newest one when some came ahead."""
        super().connection_lost(exc)
        self.pipeline.clear()
        running = self._running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> None:
        """A client that closes its half has left: whatever runs for it ends now, also when bytes
        that nobody will read still wait."""
        if self._running is not None and not self._running.response_complete:
            self.transport.abort()

    # ---- what comes in ----------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._phase in (Phase.WAITING, Phase.HEAD):
            self._unparsed_head += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            refusal = self._refusal or Refusal(400, "What came is not a valid HTTP request.")
            self._refuse(refusal)
            return
        if self._phase is Phase.HEAD and self._unparsed_head > self._limits.max_head_bytes:
            self._refuse(self._too_large())
        elif self.pipeline:
            self._read_on()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as pause:
            if not self._upgrading:
                return
            if self._may_become_socket():
                self.handle_websocket_upgrade()
                return
            # We speak HTTP/1.1 only: the same request again, without the wish to change that.
            self._upgrading = False
            head = [self.scope["method"].encode(), b" ", self.url, b" HTTP/1.1\r\n"]
            for name, value in self.headers:
                if name != b"upgrade":
                    head += [name, b": ", value, b"\r\n"]
            self.parser = httptools.HttpRequestParser(self)
            self._feed(b"".join([*head, b"\r\n", data[pause.args[0] :]]))

    def _may_become_socket(self) -> bool:
        """Whether the request that has just come asks for a web socket, under a path that has some,
        with no answer before it still on its way."""
        path = self.url.partition(b"?")[0].decode("latin-1")
        is_free = self.cycle is None or self.cycle.response_complete
        allowed = any(is_under(path, prefix) for prefix in self._socket_paths)
        return allowed and is_free and self._should_upgrade()

    def _should_upgrade(self) -> bool:
        return self._upgrading and super()._should_upgrade()

    def _read_on(self) -> None:
        """Requests ahead of their turn must not hide that the client has left: reading goes on, but
        not without bound."""
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._refuse(Refusal(400, "Too much was sent ahead of its turn."))
        else:
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_head_bytes = 0
        self._enter(Phase.HEAD)
        if len(self.pipeline) >= self._limits.max_ahead:
            self._stop(Refusal(400, "Too many requests were sent ahead of their turn."))

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))
        if len(self.headers) > self._limits.max_headers:
            self._stop(Refusal(431, f"A request may have {self._limits.max_headers} headers."))

    def _count(self, num_bytes: int) -> None:
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > self._limits.max_head_bytes:
            self._stop(self._too_large())

    def on_headers_complete(self) -> None:
        self._enter(Phase.BODY)
        self._unparsed_head = 0
        self._upgrading = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if self._upgrading:
            self.scope["method"] = self.parser.get_method().decode("ascii")
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        super().on_message_complete()
        self._enter(Phase.WAITING if self.cycle.response_complete else Phase.ANSWER)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._phase is Phase.ANSWER and not self.pipeline:
            self._enter(Phase.WAITING)

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._since = time.monotonic()

    # ---- refusals ---------------------------------------------------------------------------

    def _stop(self, refusal: Refusal) -> None:
        """Leaves the parser; `data_received` answers."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    def _too_large(self) -> Refusal:
        return Refusal(
            431, f"The head of a request may have {self._limits.max_head_bytes:,} bytes."
        )

    def _refuse(self, refusal: Refusal) -> None:
        """Answers and closes; an answer that is under way is cut off instead."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            is_its_body = self._phase is Phase.BODY and not self.pipeline
            if cycle.response_started or not is_its_body:
                self.transport.abort()
                return
        content_type, body = self._wording(refusal)
        lines = [STATUS_LINE[refusal.status], f"content-type: {content_type}\r\n".encode()]
        for name, value in self.server_state.default_headers:
            lines += [name, b": ", value, b"\r\n"]
        if refusal.retry_after_s is not None:
            lines.append(b"retry-after: %d\r\n" % refusal.retry_after_s)
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join([*lines, body]))
        self.transport.close()

    # ---- time -------------------------------------------------------------------------------

    def check_time(self, now_s: float) -> None:
        """Ends the connection when the client has taken too long. now_s: time.monotonic()."""
        limits = self._limits
        waited = now_s - self._since
        if self._stuck(now_s):
            self.transport.abort()
        elif self._phase is Phase.HEAD and waited > limits.head_s:
            self._refuse(Refusal(408, f"The head did not arrive within {limits.head_s:g} s."))
        elif self._phase is Phase.BODY and waited > limits.body_s:
            self._refuse(Refusal(408, f"The body did not arrive within {limits.body_s:g} s."))
        elif self._phase is Phase.WAITING and waited > limits.idle_s:
            self.transport.close()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait for the reader."""
        return self.transport.get_write_buffer_size() > 0

    def cut_off(self) -> None:
        """Ends the connection, whatever waits for the reader."""
        self.transport.abort()

    def _stuck(self, now_s: float) -> bool:
        """Whether bytes have waited for reader_s without any being taken; also after `close`."""
        unsent = self.transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now_s
            return False
        return now_s - self._unsent_since > self._limits.reader_s


def connection_type(
    limits: ConnectionLimits,
    socket_paths: tuple[str, ...] = (),
    wording: Wording = plain_words,
) -> type[Connection]:
    """Connections under these limits, as uvicorn makes them: from a class."""

    class BoundedConnection(Connection):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(limits, *args, socket_paths=socket_paths, wording=wording, **kwargs)

    return BoundedConnection


async def watch_time(connections: set[Any], interval_s: float = SWEEP_INTERVAL_S) -> None:
    """Keeps looking at all connections of a server until it is cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        now = time.monotonic()
        for connection in list(connections):
            if isinstance(connection, Connection):  # a web socket has its own pings
                connection.check_time(now)


def is_under(path: str, prefix: str) -> bool:
    """Whether a path is a prefix, or below it."""
    return path == prefix or path.startswith(prefix + "/")
