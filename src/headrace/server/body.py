"""Request bodies: bytes from a stranger → a JSON object, or an ApiError that says what is wrong.

Everything is bounded: bytes (of one body and of all together), time to send them, nesting, number
of values. The result holds no NaN, no infinity and no lone surrogate, so whatever is built from it
can be written as JSON and UTF-8 again. What is checked before parsing is checked by a few passes
over all bytes at once, because a stream waits while a pass runs.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from headrace.server.errors import ApiError, invalid

#: Seconds that a client may take to send a body.
BODY_TIMEOUT_S = 60.0
#: Bodies longer than this are parsed in a thread.
INLINE_BYTES = 1 << 18
#: Values (and commas in texts) in one body: a value takes up to 80 bytes once it is parsed.
MAX_VALUES = 1 << 19
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Digits of the longest number: Python refuses to read much longer ones, and nothing here is.
MAX_DIGITS = 400
_BRACKETS_AND_QUOTES = b'"[]{}'
_OTHERS = bytes(set(range(256)) - set(_BRACKETS_AND_QUOTES))
_DIGITS_AS_ONES = bytes(0x31 if chr(byte) in "0123456789" else 0 for byte in range(256))


@dataclass(slots=True)
class Inbox:
    """Bytes of all bodies that are being received or parsed now, and the most they may be."""

    max_bytes: int
    num_bytes: int = 0

    def take(self, num_bytes: int) -> None:
        """Raises ApiError 429 when they are too many."""
        if self.num_bytes + num_bytes > self.max_bytes:
            raise ApiError(
                429, "The server is receiving too much at once.", headers={"Retry-After": "1"}
            )
        self.num_bytes += num_bytes


async def read_json(
    request: Request, max_bytes: int, max_nesting: int, inbox: Inbox
) -> dict[str, Any]:
    """The body's object. Raises ApiError (400, 408, 413, 415, 429) or ClientDisconnect."""
    _check_headers(request, max_bytes)
    parts: list[bytes] = []
    try:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await _receive(request, max_bytes, inbox, parts)
        except TimeoutError:
            raise ApiError(408, f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from None
        data = b"".join(parts)
        if len(data) > INLINE_BYTES:
            return await asyncio.to_thread(parse_object, data, max_nesting)
        return parse_object(data, max_nesting)
    finally:
        inbox.num_bytes -= sum(map(len, parts))


def _check_headers(request: Request, max_bytes: int) -> None:
    """JSON only. So a web page of another origin cannot send anything here without its browser
    asking first (CORS): what it may send unasked is never application/json."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ApiError(
            415, f"The Content-Type must be application/json, not {media_type[:80] or 'missing'!r}."
        )
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, f"Content-Encoding {encoding[:40]!r} is not supported; send it plain.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)


async def _receive(request: Request, max_bytes: int, inbox: Inbox, parts: list[bytes]) -> None:
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        inbox.take(len(part))
        parts.append(part)


def parse_object(data: bytes, max_nesting: int) -> dict[str, Any]:
    """JSON text in UTF-8 → an object. Raises ApiError 400."""
    if not data.strip():
        raise invalid("The body is empty; a JSON object was expected.")
    if num_values(data) > MAX_VALUES:
        raise invalid(f"The JSON body holds more than {MAX_VALUES:,} values.")
    if nesting(data, max_nesting) > max_nesting:
        raise invalid(f"The JSON body is nested deeper than {max_nesting} levels.")
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_short if _has_long_run(data) else None,
        )
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8 (byte {error.start}).") from None
    except (ValueError, RecursionError) as error:
        raise invalid(f"The body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise invalid(f"The body must be a JSON object, not {_kind(value)}.")
    if _SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise invalid("The body holds a lone surrogate (\\ud800 … \\udfff).") from None
    return value


def num_values(data: bytes) -> int:
    """At least as many as there are; separators in texts count too."""
    return sum(map(data.count, (b",", b"[", b"{", b":")))


def nesting(data: bytes, limit: int) -> int:
    """Levels of brackets, counted until they exceed the limit; brackets in texts do not count."""
    if data.count(b"{") + data.count(b"[") <= limit:  # so it cannot be deeper
        return 0
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(unescaped.translate(None, _OTHERS).split(b'"')[::2])
    depth = deepest = 0
    for character in outside:
        if character in b"{[":
            depth += 1
            if depth > deepest:
                deepest = depth
                if deepest > limit:
                    break
        else:
            depth -= 1
    return deepest


def _has_long_run(data: bytes) -> bool:
    return b"1" * MAX_DIGITS in data.translate(_DIGITS_AS_ONES)


def _short(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The body is larger than {max_bytes:,} bytes.", code="body_too_large")


__all__ = ["ClientDisconnect", "Inbox", "nesting", "num_values", "parse_object", "read_json"]
