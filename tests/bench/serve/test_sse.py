"""Server-sent events, cut anywhere; the oracle is a plain reading of the WHATWG grammar."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench.serve.failures import Failure, RequestFailed
from headrace.bench.serve.sse import SSEParser


def events(pieces: list[bytes]) -> list[bytes]:
    parser = SSEParser()
    return [data for piece in pieces for data in parser.feed(piece)]


def plain_reading(whole: bytes) -> list[bytes]:
    """All at once, line by line, by the text of the standard."""
    lines = re.split(rb"\r\n|\n|\r", whole.removeprefix(b"\xef\xbb\xbf"))
    found, data = [], b""
    for line in lines[:-1]:
        if line == b"":
            if data:
                found.append(data[:-1])
            data = b""
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            if field == b"data":
                data += value.removeprefix(b" ") + b"\n"
    return found


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\r\n\r\ndata:  b\r\rdata\n\n", [b"a", b" b", b""]),
        (b": ping\n\ndata: {\ndata: }\nid: 7\nevent: x\n\n", [b"{\n}"]),
        (b"data: never ends\n", []),
        (b"\n\n\nretry: 1\n\n", []),
    ],
)
def test_by_hand(whole: bytes, expected: list[bytes]) -> None:
    assert events([whole]) == expected == plain_reading(whole)
    assert events([bytes([b]) for b in whole]) == expected


LINES = st.sampled_from(
    [
        b"data: x",
        b"data:",
        b"data",
        b"data:  y",
        b"",
        b"",
        b": c",
        b"event: e",
        b"datas: z",
        b"\xff",
    ]
)


@given(
    st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=20),
    st.lists(st.integers(0, 80), max_size=6),
)
def test_any_split_reads_the_same(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    whole = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(edges)]
    assert events(pieces) == plain_reading(whole)


@pytest.mark.parametrize("piece", [b"x" * 100, b"data: xxxxxxxxxx\n"])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    parser = SSEParser(max_event_bytes=1000)
    with pytest.raises(RequestFailed) as refusal:
        all(parser.feed(piece) == [] for _ in range(200))
    assert refusal.value.kind is Failure.TOO_LARGE
