"""What happens to every request before its route: a name, a clock, the key.

Plain ASGI: a stream's chunks pass through one thin function.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.errors import ApiError

#: Routes that answer without a key.
OPEN_PATHS = frozenset({"/health"})
_NAME = re.compile(r"[\x21-\x7e]{1,128}")


class Entrance:
    """Notes the arrival, names the request (header x-request-id in and out), and checks the key:
    `Authorization: Bearer KEY` or `x-api-key: KEY`, compared in constant time."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [_digest(key) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["arrived_s"] = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _NAME.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        scope["request_id"] = name

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = name
                scope["status"] = message["status"]
            await send(message)

        if self._keys and scope["path"] not in OPEN_PATHS and not self._knows(headers):
            await _refuse(named)
            return
        await self._app(scope, receive, named)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            key = headers.get("x-api-key", "")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._keys]
        return any(matches)


def _digest(key: str) -> bytes:
    """Equal lengths, so that comparing tells nothing about the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


async def _refuse(send: Send) -> None:
    error = ApiError(401, "A valid API key is needed (Authorization: Bearer …).",
                     code="invalid_api_key")  # fmt: skip
    body = error.to_bytes()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})
