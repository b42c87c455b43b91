"""What happens to every request around its route: a name, a clock, the key, and its last word.

Plain ASGI: a stream's chunks pass through one thin function.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.errors import ApiError
from headrace.server.visit import Visit

_LOG = logging.getLogger("headrace.server")

#: Routes that answer without a key.
OPEN_PATHS = frozenset({"/health"})
#: Why a request was ended that nobody answers any more.
FAILED = "the request failed"
_NAME = re.compile(r"[\x21-\x7e]{1,128}")


class Entrance:
    """Notes the arrival, names the request (header x-request-id in and out), and checks the key:
    `Authorization: Bearer KEY` or `x-api-key: KEY`, compared in constant time. on_end: told of
    every request when it is over, whatever became of it."""

    def __init__(
        self, app: ASGIApp, api_keys: Sequence[str], on_end: Callable[[Visit], None]
    ) -> None:
        self._app = app
        self._keys = [_digest(key) for key in api_keys]
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _NAME.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        visit = Visit(name, scope["method"], scope["path"])
        visit.traceparent = headers.get("traceparent")
        visit.tracestate = headers.get("tracestate")
        scope["visit"] = visit

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = name
                visit.status = message["status"]
            await send(message)

        try:
            if self._keys and scope["path"] not in OPEN_PATHS and not self._knows(headers):
                await _send_error(named, _NO_KEY)
            else:
                await self._app(scope, receive, named)
        except Exception:
            visit.problem = "server_error"
            _LOG.exception("a request failed in a way it should not", extra={"request_id": name})
            if not visit.status:
                await _send_error(named, _BUG)
        finally:
            if visit.flow is not None:
                visit.flow.cancel(FAILED)  # whatever went wrong, nothing runs on for nobody
            visit.end(scope)
            self._on_end(visit)

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


_NO_KEY = ApiError(
    401,
    "A valid API key is needed (Authorization: Bearer KEY).",
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
)
_BUG = ApiError(500, "Something went wrong inside the server; its log says what.")


async def _send_error(send: Send, error: ApiError) -> None:
    response = Response(
        error.to_bytes(), error.status, headers=error.headers, media_type="application/json"
    )
    start = {"type": "http.response.start", "status": error.status, "headers": response.raw_headers}
    await send(start)
    await send({"type": "http.response.body", "body": response.body})
