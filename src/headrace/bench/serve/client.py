"""A light HTTP/1.1 client for one server: keep-alive connections, TLS, streams read as they come.

Every byte is stamped in the event loop's callback, before anything is parsed. Knows nothing of
completions: an `Exchange` says what becomes of the bytes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from headrace.bench.serve.failures import Failure, RequestFailed
from headrace.bench.serve.http1 import ResponseParser
from headrace.bench.serve.target import Target

#: Reads a monotonic clock in whole nanoseconds.
Clock = Callable[[], int]
#: Opens one connection to the target. A test has its own.
Connect = Callable[[Callable[[], asyncio.Protocol]], "asyncio.Future[None]"]

_CONNECT_TIMEOUT_S = 30.0


class Exchange(Protocol):
    """One request on the wire, as its connection sees it."""

    def written(self, now_ns: int) -> None:
        """The request is about to be written, perhaps once more on a new connection."""

    def body(self, now_ns: int, response: ResponseParser, piece: bytes) -> bool:
        """A piece of the body. Raises RequestFailed. True: enough, end the request now."""


@dataclass(slots=True)
class Effort:
    """What reading cost: time in our callbacks and how often they ran; connections opened, and the
    time to open them."""

    reads: int = 0
    handling_ns: int = 0
    connections: int = 0
    connecting_ns: int = 0
    resent: int = 0

    def reset(self) -> None:
        """Counts from here on."""
        self.reads = self.handling_ns = self.connections = self.connecting_ns = self.resent = 0


class _Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time."""

    def __init__(self, clock: Clock, effort: Effort) -> None:
        self._clock = clock
        self._effort = effort
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._response = ResponseParser()
        self._result: asyncio.Future[ResponseParser] | None = None
        self.untouched = True  # nothing has come back for the current request
        self.usable = False

    def start(self, request: bytes, exchange: Exchange) -> asyncio.Future[ResponseParser]:
        """Writes a request. The future ends with the whole response, or RequestFailed."""
        assert self._transport is not None
        result: asyncio.Future[ResponseParser] = asyncio.get_running_loop().create_future()
        self._exchange, self._result = exchange, result
        self._response = ResponseParser()
        self.untouched, self.usable = True, False
        exchange.written(self._clock())
        self._transport.write(request)
        return result

    def abort(self) -> None:
        """Closes at once; what was open ends with nothing."""
        self.usable = False
        self._exchange = self._result = None
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the event loop ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not say so
        self.usable = True

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        exchange = self._exchange
        if exchange is None:  # nobody asked
            self.abort()
            return
        self.untouched = False
        response = self._response
        try:
            body = response.feed(data)
            enough = exchange.body(now, response, body) if body else False
        except RequestFailed as failure:
            self._fail(failure)
            return
        if response.complete or enough:
            self._finish(response, keep=response.complete and response.keep_alive)
        effort = self._effort
        effort.reads += 1
        effort.handling_ns += self._clock() - now

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._result is None:
            return
        try:
            self._response.closed()
            if error is not None:
                raise RequestFailed(Failure.DISCONNECTED, str(error) or type(error).__name__)
        except RequestFailed as failure:
            self._fail(failure)
        else:
            self._finish(self._response, keep=False)

    def _finish(self, response: ResponseParser, *, keep: bool) -> None:
        result = self._result
        self._exchange = self._result = None
        if not keep:
            self.abort()
        self.usable = keep
        if result is not None and not result.done():
            result.set_result(response)

    def _fail(self, failure: RequestFailed) -> None:
        result = self._result
        self.abort()
        if result is not None and not result.done():
            result.set_exception(failure)


@dataclass(slots=True)
class Client:
    """Sends requests to one target. connect: None = sockets."""

    target: Target
    clock: Clock = time.monotonic_ns
    connect: Connect | None = None
    effort: Effort = field(default_factory=Effort)
    _idle: list[_Connection] = field(default_factory=list)
    _tls: ssl.SSLContext | None = None

    async def send(self, request: bytes, exchange: Exchange, timeout_s: float) -> ResponseParser:
        """One request and its whole response. Raises RequestFailed. A kept connection that turns
        out to be closed before a byte came back is replaced by a new one, once."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    connection, fresh = self._kept(), False
                    if connection is None:
                        connection, fresh = await self._open(), True
                    try:
                        return await self._exchange(connection, request, exchange)
                    except RequestFailed as failure:
                        gone = failure.kind is Failure.DISCONNECTED and connection.untouched
                        if fresh or not gone:
                            raise
                        self.effort.resent += 1
        except TimeoutError:
            raise RequestFailed(
                Failure.TIMEOUT, f"no whole answer within {timeout_s:g} s"
            ) from None

    async def warm(self, count: int) -> None:
        """Opens connections ahead, so that no request of a run waits for one. Raises
        RequestFailed."""
        while len(self._idle) < count:
            self._idle.append(await self._open())

    def close(self) -> None:
        """Closes what is idle."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def _exchange(
        self, connection: _Connection, request: bytes, exchange: Exchange
    ) -> ResponseParser:
        try:
            response = await connection.start(request, exchange)
        except asyncio.CancelledError:
            connection.abort()
            raise
        if connection.usable:
            self._idle.append(connection)
        return response

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _open(self) -> _Connection:
        connection = _Connection(self.clock, self.effort)
        begin = self.clock()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await self._connect(lambda: connection)
        except TimeoutError:
            raise RequestFailed(
                Failure.CONNECT, f"{self.target.authority} accepts no connection"
            ) from None
        except (OSError, UnicodeError) as error:
            raise RequestFailed(Failure.CONNECT, f"{self.target.authority}: {error}") from None
        self.effort.connections += 1
        self.effort.connecting_ns += self.clock() - begin
        return connection

    async def _connect(self, make: Callable[[], asyncio.Protocol]) -> None:
        if self.connect is not None:
            await self.connect(make)
            return
        target = self.target
        if target.tls and self._tls is None:
            self._tls = ssl.create_default_context()
            if not target.verify:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
        await asyncio.get_running_loop().create_connection(
            make, target.host, target.port, ssl=self._tls
        )


@dataclass(slots=True)
class Collect:
    """An exchange that keeps the body, for answers that are not streams. Raises RequestFailed
    (too_large) above its limit."""

    max_bytes: int = 16 << 20
    data: bytearray = field(default_factory=bytearray)

    def written(self, now_ns: int) -> None:
        self.data.clear()

    def body(self, now_ns: int, response: ResponseParser, piece: bytes) -> bool:
        self.data += piece
        if len(self.data) > self.max_bytes:
            raise RequestFailed(Failure.TOO_LARGE, f"an answer of more than {self.max_bytes} bytes")
        return False


async def fetch(
    client: Client, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0
) -> tuple[int, bytes]:
    """Status and body of one ordinary request. Raises RequestFailed."""
    collect = Collect()
    request = client.target.request(method, path, body)
    response = await client.send(request, collect, timeout_s)
    return response.status, bytes(collect.data)
