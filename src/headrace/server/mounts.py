"""Applications beside the API, each under a path of its own, in the server's process and port.

    /ui, /ui/…  ─▶ the mounted application, which lets in whom it wants
    all else    ─▶ the API, behind its key

What is mounted sees the whole path, and the API as any client does: by HTTP, at the URL it is made
with. Web sockets are for mounted applications only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.connection import is_under


class Mounted(Protocol):
    """An ASGI application with a life of its own."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Between its start and its end, in the loop that serves it."""
        ...


#: Makes an application for the API at a URL without /v1 ("http://127.0.0.1:8000").
MakeMounted = Callable[[str], Mounted]


class Crossroads:
    """Sends every request to the application under whose path it is. mounted: path without a slash
    at its end → application."""

    def __init__(self, api: ASGIApp, mounted: Mapping[str, Mounted]) -> None:
        self._api = api
        self._mounted = mounted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        for prefix, app in self._mounted.items():
            if is_under(path, prefix):
                await app(scope, receive, send)
                return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        await self._api(scope, receive, send)
