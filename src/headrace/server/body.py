"""Request bodies: bytes from a stranger → a JSON object, or an ApiError that says what is wrong.

Everything is bounded: bytes, time to send them, nesting. The result holds no NaN, no infinity and
no lone surrogate, so whatever is built from it can be written as JSON and UTF-8 again.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from headrace.server.errors import ApiError, invalid

#: Seconds that a client may take to send a body.
BODY_TIMEOUT_S = 60.0
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
#: Digits of the longest number: Python refuses to read much longer ones, and nothing here is.
_LONG_NUMBER = re.compile(rb"[0-9]{400}")


async def read_json(request: Request, max_bytes: int, max_nesting: int) -> dict[str, Any]:
    """The body's object. Raises ApiError (400, 408, 413) or ClientDisconnect."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await _read(request, max_bytes)
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from None
    if len(data) > 1 << 18:  # long enough to hold up other requests
        return await asyncio.to_thread(parse_object, data, max_nesting)
    return parse_object(data, max_nesting)


async def _read(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def parse_object(data: bytes, max_nesting: int) -> dict[str, Any]:
    """JSON text in UTF-8 → an object. Raises ApiError 400."""
    if not data.strip():
        raise invalid("The body is empty; a JSON object was expected.")
    if nesting(data, max_nesting) > max_nesting:
        raise invalid(f"The JSON body is nested deeper than {max_nesting} levels.")
    if _LONG_NUMBER.search(data) and _LONG_NUMBER.search(_STRING.sub(b'""', data)):
        raise invalid("The JSON body holds a number of 400 digits or more.")
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8 (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise invalid(f"The body is not valid JSON: {error}.") from None
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


def nesting(data: bytes, limit: int) -> int:
    """Levels of brackets, counted until they exceed the limit; brackets in strings do not count."""
    if data.count(b"{") + data.count(b"[") <= limit:  # so it cannot be deeper
        return 0
    depth = deepest = 0
    for character in _STRING.sub(b"", data):
        if character in b"{[":
            depth += 1
            if depth > deepest:
                deepest = depth
                if deepest > limit:
                    break
        elif character in b"}]":
            depth -= 1
    return deepest


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"The body is larger than {max_bytes:,} bytes.", code="body_too_large")


__all__ = ["ClientDisconnect", "nesting", "parse_object", "read_json"]
