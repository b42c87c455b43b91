"""The limits of one connection, on real sockets, with limits small enough to wait for."""

from __future__ import annotations

import asyncio
import functools
import select
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from headrace.connection import Connection, ConnectionLimits, watch_time
from headrace.server.errors import wording
from raw_http import RawClient, exchange, request
from waiting import until

LIMITS = ConnectionLimits(
    reader_s=1.5,
    idle_s=1.2,
    head_s=0.5,
    body_s=0.6,
    max_head_bytes=4096,
    max_headers=20,
    max_ahead=4,
    max_connections=8,
)
BIG = 8 << 20


class App:
    """Says what it was sent; /big answers with much, /wait when it is let, /leave tells whether the
    client has left."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.go = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.disconnect":
                self.left.set()
                return
            if not message.get("more_body"):
                break
        if path == "/wait":
            while not self.go.is_set():
                await asyncio.sleep(0.01)
        if path == "/leave":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        names = b",".join(name for name, _ in scope["headers"])
        content = b"x" * BIG if path == "/big" else b"|".join([path.encode(), body, names])
        headers = [(b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, App, uvicorn.Server]]:
    app = App()
    config = uvicorn.Config(
        app, port=0, lifespan="off", ws="none", log_config=None,
        http=functools.partial(Connection, LIMITS, wording=wording), timeout_graceful_shutdown=1,
    )  # fmt: skip
    running = uvicorn.Server(config)

    async def main() -> None:
        watching = asyncio.create_task(watch_time(running.server_state.connections, 0.1))
        await running._serve()
        watching.cancel()

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        thread = threading.Thread(target=lambda: runner.run(main()))
        thread.start()
        while not running.started:
            time.sleep(0.01)
        port = running.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", app, running
        app.go.set()
        running.should_exit = True
        thread.join()


@pytest.fixture
def url(server: tuple[str, App, uvicorn.Server]) -> Iterator[str]:
    _, app, running = server
    app.left.clear()
    app.go.clear()
    yield server[0]
    app.go.set()
    state = running.server_state
    until(lambda: not state.connections and not state.tasks, "no connection is left")


@pytest.fixture
def app(server: tuple[str, App, uvicorn.Server]) -> App:
    return server[1]


def test_requests_one_after_the_other(url: str) -> None:
    with RawClient(url) as client:
        for number in range(5):
            client.send(request("POST", f"/{number}", b"{}"))
            assert client.answer().body.startswith(b"/%d|{}|" % number)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # a TLS handshake
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_json(url: str, data: bytes) -> None:
    answer = exchange(url, data)
    assert answer.status == 400
    assert answer.headers["connection"] == "close"
    assert answer.json["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: %s\r\n" % (b"a" * 5000),
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: a\r\n" % n for n in range(21)) + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
    ],
    ids=["path", "header", "headers", "endless"],
)
def test_large_heads_are_refused(url: str, head: bytes) -> None:
    assert exchange(url, head).status == 431


def test_a_slow_head_ends(url: str) -> None:
    with RawClient(url) as client:
        client.send(b"GET / HTTP/1.1\r\n")
        trickle(client, b"X: 1\r\n")
        assert client.answer().status == 408


def trickle(client: RawClient, data: bytes) -> None:
    """Sends it again and again, as the slowest do, until the other side says or does something."""
    for _ in range(1000):
        if select.select([client.socket], [], [], 0.1)[0]:
            return
        try:
            client.send(data)
        except OSError:
            return
    raise AssertionError("it may go on for ever")


def test_empty_lines_are_no_request(url: str) -> None:
    with RawClient(url) as client:
        trickle(client, b"\r\n")
        assert client.closed_within(10)


def test_a_slow_body_ends(url: str) -> None:
    with RawClient(url) as client:
        client.send(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n")
        trickle(client, b"a")
        assert client.answer().status == 408


def test_an_idle_connection_ends(url: str) -> None:
    with RawClient(url) as client:
        client.send(request("GET", "/"))
        assert client.answer().status == 200
        assert client.closed_within(30)


def test_requests_ahead_of_their_turn(url: str, app: App) -> None:
    """A few are answered in order; many, or many bytes, end the connection."""
    with RawClient(url) as client:
        client.send(b"".join(request("POST", f"/{n}", b"{}") for n in range(4)))
        assert [client.answer().body[:2] for _ in range(4)] == [b"/0", b"/1", b"/2", b"/3"]
    for ahead in (b"GET /x HTTP/1.1\r\n\r\n" * 20_000, request("POST", "/x", b"a" * 300_000)):
        app.go.clear()
        with RawClient(url) as client:
            client.send(request("GET", "/wait"))
            try:
                client.send(ahead)
            except OSError:
                continue
            assert client.closed_within(30)


@pytest.mark.parametrize("ahead", [b"", request("GET", "/next"), request("GET", "/next") * 3])
@pytest.mark.parametrize("how", ["close", "reset", "shutdown"])
def test_a_client_that_leaves_is_noticed(url: str, app: App, how: str, ahead: bytes) -> None:
    """Also when it has sent requests ahead."""
    client = RawClient(url)
    client.send(request("POST", "/leave", b"{}") + ahead)
    assert not app.left.wait(0.05)
    match how:
        case "close":
            client.socket.close()
        case "reset":
            client.reset()
        case "shutdown":
            client.socket.shutdown(1)
    assert app.left.wait(10)
    client.socket.close()


@pytest.mark.parametrize("body", [b"", b"abc"])
def test_a_wish_for_another_protocol_is_passed_over(url: str, body: bytes) -> None:
    """Java's HTTP client asks for h2c with every first request, also with a body."""
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    with RawClient(url) as client:
        client.send(request("POST", "/a", body, upgrade) + request("POST", "/b", b"after"))
        assert client.answer().body.startswith(b"/a|" + body + b"|")
        assert client.answer().body.startswith(b"/b|after|")
        client.send(request("POST", "/c", b"again"))
        assert client.answer().body.startswith(b"/c|again|")


def test_a_reader_that_reads_nothing_is_ended(
    url: str, server: tuple[str, App, uvicorn.Server]
) -> None:
    with RawClient(url, receive_buffer=4096) as client:
        client.send(request("GET", "/big"))
        client.peek(1)
        until(lambda: not server[2].server_state.connections, "it is ended")
        assert len(client.rest()) < BIG


def test_a_slow_reader_is_not(url: str) -> None:
    """Slower than the limit over all, but never for so long without a byte."""
    with RawClient(url, receive_buffer=1 << 16) as client:
        client.send(request("GET", "/big"))
        got, began = 0, time.monotonic()
        while got < BIG:
            got += len(client.some(BIG // 16))
            if time.monotonic() - began < 2.2:
                time.sleep(0.15)
        assert got > BIG


def test_too_many_connections(url: str) -> None:
    clients = [RawClient(url) for _ in range(8)]
    for client in clients:
        client.send(request("GET", "/"))
        assert client.answer().status == 200
    refused = exchange(url, request("GET", "/"))
    assert refused.status in (503, 0)
    for client in clients:
        client.socket.close()
    until(lambda: exchange(url, request("GET", "/")).status == 200, "there is room again")
