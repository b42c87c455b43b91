"""HTTP/1.1 responses, cut anywhere, whole and broken."""

from __future__ import annotations

import http.client
import io
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.serve.failures import Failure, RequestFailed
from headrace.bench.serve.http1 import ResponseParser


def read(pieces: list[bytes]) -> tuple[ResponseParser, bytes]:
    parser = ResponseParser()
    return parser, b"".join(parser.feed(piece) for piece in pieces)


def response(body: list[bytes], framing: str, extension: bytes = b"") -> bytes:
    """A body in parts: chunked, by length, or until the connection closes."""
    head = b"HTTP/1.1 200 OK\r\nX-Thing:  a b \r\n"
    if framing == "length":
        return head + b"Content-Length: %d\r\n\r\n" % sum(map(len, body)) + b"".join(body)
    if framing == "close":
        return head + b"Connection: close\r\n\r\n" + b"".join(body)
    chunks = (b"%X%s\r\n%s\r\n" % (len(part), extension, part) for part in body if part)
    return (
        head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(chunks)
        + b"0\r\nX-Trailer: 1\r\n\r\n"
    )


@given(
    st.lists(st.binary(max_size=40), max_size=5),
    st.sampled_from(["chunked", "length", "close"]),
    st.sampled_from([b"", b";a=b", b" ; x"]),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_any_split_reads_the_same(
    body: list[bytes], framing: str, extension: bytes, announced: bool, cuts: list[int]
) -> None:
    whole = response(body, framing, extension)
    if announced:
        whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + whole
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parser, found = read([whole[a:b] for a, b in pairwise(edges)])
    assert found == b"".join(body)
    assert (parser.status, parser.headers["x-thing"]) == (200, "a b")
    assert parser.keep_alive == (framing != "close")
    assert parser.complete == (framing != "close")
    parser.closed()
    assert parser.complete


class _Socket:
    def __init__(self, data: bytes) -> None:
        self.makefile = lambda mode: io.BytesIO(data)


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from(["chunked", "length"]))
def test_the_standard_library_agrees(body: list[bytes], framing: str) -> None:
    whole = response(body, framing)
    oracle = http.client.HTTPResponse(_Socket(whole))  # type: ignore[arg-type]
    oracle.begin()
    parser, found = read([whole])
    assert (oracle.status, oracle.read()) == (parser.status, found)


@pytest.mark.parametrize(
    "whole",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1" * 5000,
        b"HTTP/1.1 101 Switching\r\n\r\n",
    ],
)
def test_what_is_no_response(whole: bytes) -> None:
    for pieces in ([whole], [bytes([b]) for b in whole]):
        with pytest.raises(RequestFailed) as refusal:
            read(pieces)
        assert refusal.value.kind is Failure.BAD_HTTP


def test_a_head_without_end() -> None:
    with pytest.raises(RequestFailed) as refusal:
        read([b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"y" * 1000 + b"\r\n"] * 100])
    assert refusal.value.kind is Failure.TOO_LARGE


@pytest.mark.parametrize(
    "whole",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ],
)
def test_a_connection_that_ends_too_early(whole: bytes) -> None:
    parser, _ = read([whole] if whole else [])
    with pytest.raises(RequestFailed) as refusal:
        parser.closed()
    assert refusal.value.kind is Failure.DISCONNECTED


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=30), max_size=6), st.booleans())
def test_garbage_is_refused_or_waited_for(pieces: list[bytes], after_head: bool) -> None:
    parser = ResponseParser()
    if after_head:
        parser.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        for piece in pieces:
            parser.feed(piece)
        parser.closed()
    except RequestFailed as refusal:
        assert refusal.kind in (Failure.BAD_HTTP, Failure.DISCONNECTED)  # noqa: PT017
