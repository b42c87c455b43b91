"""Wire: what a server sends, read within bounds and as values that a page can take.

Whoever answers at the address may be broken, or no server of ours: nothing is read without end,
nothing is unpacked, and what is no JSON is a ValueError. Knows no routes and no pages.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

#: Larger whole numbers than this a browser does not get exactly.
_MOST_DIGITS = 20


async def whole_body(chunks: AsyncIterable[bytes], most: int) -> bytes:
    """All that comes. Raises ValueError beyond `most` bytes."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise ValueError("an answer without end")
    return b"".join(parts)


async def event_data(chunks: AsyncIterable[bytes], most: int) -> AsyncIterator[bytes]:
    """The data of every server-sent event, until [DONE] or the end; comments and names are passed
    over. Only a line feed ends a line: a text may hold anything else that looks like an end.
    Raises ValueError for an event of more than `most` bytes."""
    data: list[bytes] = []
    size = 0
    async for line in _lines(chunks, most):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            size += len(line)
            if size > most:
                raise ValueError("an event without end")
        elif not line and data:
            event = b"\n".join(data)
            data.clear()
            size = 0
            if event == b"[DONE]":
                return
            yield event


async def _lines(chunks: AsyncIterable[bytes], most: int) -> AsyncIterator[bytes]:
    begun: list[bytes] = []  # of the line that has not ended yet
    size = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > most:
            raise ValueError("a line without end")
        for piece in others:
            yield b"".join(begun).removesuffix(b"\r")
            begun, size = [piece], len(piece)


def value_of(data: bytes) -> Any:
    """A JSON value that can be sent on: no halves of characters, no numbers that are none, no whole
    numbers beyond 64 bits (they become floats). Raises ValueError."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=_no_number)
        if "\\ud" in text.lower():
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    return value


def _whole(digits: str) -> int | float:
    """What 64 bits hold, as seeds need it; more goes on as a float."""
    value = int(digits) if len(digits) <= _MOST_DIGITS else None
    return value if value is not None and -(1 << 63) <= value < 1 << 64 else _finite(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number without end")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
