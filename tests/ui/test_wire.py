"""What a server may send, whoever it is: read within bounds, and one sentence for the rest."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.ui import backend as backend_module
from headrace.ui.backend import Backend, BackendError
from headrace.ui.wire import event_data, value_of

MOST = 1 << 16


async def _chunks(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def _read(parts: Iterable[bytes], most: int = MOST) -> list[bytes]:
    return [data async for data in event_data(_chunks(parts), most)]


@settings(max_examples=30)
@given(
    texts=st.lists(st.text(max_size=12), max_size=6),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    end=st.sampled_from((b"\n", b"\r\n")),
)
def test_events_come_out_whole_wherever_the_stream_is_cut(
    texts: list[str], cuts: list[int], end: bytes
) -> None:
    events = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]
    stream = b": ping" + end * 2 + b"".join(b"data: " + event + end * 2 for event in events)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    parts = [stream[a:b] for a, b in pairwise(places)]
    assert asyncio.run(_read(parts)) == events


def test_only_a_line_feed_ends_a_line() -> None:
    text = "a\u2028b\u2029c\x85d"
    stream = b"data: " + json.dumps(text, ensure_ascii=False).encode() + b"\n\ndata: [DONE]\n\n"
    [data] = asyncio.run(_read([stream, b"data: never\n\n"]))
    assert value_of(data) == text


@pytest.mark.parametrize("part", [b"x" * 100, b"data: xxxxxxx\n", b"data:", b"x"])
def test_a_stream_without_end_ends(part: bytes) -> None:
    with pytest.raises(ValueError, match="without end"):
        asyncio.run(_read((part for _ in range(MOST + 1)), MOST))


def test_values_can_be_sent_on() -> None:
    sent = value_of(
        b'{"a": ["\\ud800", "\\ud83d\\ude00"], "n": 123456789012345678901, "k\\udfff": 1}'
    )
    assert sent == {"a": ["?", "\N{GRINNING FACE}"], "n": 123456789012345678901.0, "k?": 1}
    json.dumps(sent, ensure_ascii=False).encode()
    for bad in (b"NaN", b"[-Infinity]", b"1e999", b"9" * 400, b'"\xed\xa0\x80"', b"[" * 10**5, b"",
                b"\xff\xfe1\x00"):  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011  (each kind has its words)
            value_of(bad)


BODIES = {
    "/list": b"[]",
    "/deep": b"[" * 10**5,
    "/text": b"<html>",
    "/bomb": gzip.compress(b"[" + b"0," * 10**6 + b"0]"),
}


class _Stranger(BaseHTTPRequestHandler):
    """Answers by path, and notes who comes with a key."""

    keys: list[str | None]

    def do_GET(self) -> None:
        self.keys.append(self.headers.get("authorization"))
        body = BODIES.get(self.path, b"")
        self.send_response(302 if self.path == "/away" else 200)
        if self.path == "/away":
            self.send_header("location", "/list")
        if self.path == "/bomb":
            self.send_header("content-encoding", "gzip")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)
            while self.path in ("/endless", "/slow"):
                self.wfile.write(b" " * (1 if self.path == "/slow" else 1 << 16))
                time.sleep(0.02 if self.path == "/slow" else 0)

    def log_message(self, format: str, *arguments: object) -> None: ...


class _Silent(ThreadingHTTPServer):
    """Says nothing of clients that do not trust it."""

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[str | None]]]:
    _Stranger.keys = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stranger)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", _Stranger.keys
    server.shutdown()
    server.server_close()


def test_strangers_are_one_sentence_and_the_key_goes_nowhere_else(
    stranger: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, keys = stranger
    monkeypatch.setattr(backend_module, "ANSWER_S", 0.4)
    monkeypatch.setattr(backend_module, "MAX_ANSWER_BYTES", 1 << 20)

    async def run() -> list[str]:
        backend = Backend(url, "secret")
        said = []
        for path in ("/away", "/bomb", "/deep", "/endless", "/slow", "/text"):
            with pytest.raises(BackendError) as caught:
                await backend.get(path)
            said.append(str(caught.value))
        backend.url = url + "/none"
        with pytest.raises(BackendError, match="no Headrace server"):
            await backend.model_name()  # its list has no model, and is no object
        await backend.close()
        return said

    said = asyncio.run(run())
    assert "status 302" in said[0]
    assert all("no Headrace server" in one for one in (*said[1:4], said[5]))
    assert "not answer in time" in said[4]
    assert keys == ["Bearer secret"] * 7


def test_a_certificate_is_trusted_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pem = Path(__file__).with_name("self_signed.pem")  # of localhost; its key is nobody's
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    _Stranger.keys = []
    server = _Silent(("127.0.0.1", 0), _Stranger)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def ask() -> object:
        backend = Backend(f"https://localhost:{server.server_port}", "secret")
        try:
            return await backend.get("/list")
        finally:
            await backend.close()

    with pytest.raises(BackendError, match=r"server at https:.* is not trusted"):
        asyncio.run(ask())
    assert _Stranger.keys == [], "the key is told to nobody who is not trusted"
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    assert asyncio.run(ask()) == []
    server.shutdown()
    server.server_close()
