"""Guard: what every request to the dashboard passes, pages, files and websockets alike.

    host known? ─▶ same origin? ─▶ log in, log out ─▶ session, where the server wants a key ─▶ pages

Plain ASGI around the pages. A page that the guard lets through still reaches the server with its
own session's key only; a visitor without a session has a backend without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Collection
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.ui.backend import Backend
from headrace.ui.door.login import login_page
from headrace.ui.door.sessions import Attempts, Sessions

#: How long it is believed that the server wants, or does not want, a key, seconds.
BELIEF_S = 5.0
MAX_FORM_BYTES = 8 << 10
MAX_KEY_CHARS = 4096
#: A form has so long to arrive, seconds.
FORM_S = 10.0

#: The pages' own scripts are inline and compile templates; nothing comes from, or goes, elsewhere.
PAGE_CSP = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "font-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    # not no-referrer: with it browsers send "Origin: null" with our own forms, and we refuse that
    "referrer-policy": "same-origin",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """The door of the dashboard. prefix: "/ui"; pages: paths below it that a login may lead to;
    hosts: names besides localhost, this machine's own and plain addresses by which it may be
    called; owner: which backend a page of that id was built with (None: there is no such page)."""

    def __init__(
        self,
        app: ASGIApp,
        sessions: Sessions,
        prefix: str,
        pages: Collection[str],
        hosts: Collection[str],
        owner: Callable[[str], Backend | None],
    ) -> None:
        self._app = app
        self._sessions = sessions
        self._prefix = prefix
        self._pages = frozenset(pages)
        self._hosts = {"localhost", socket.gethostname().lower(), *(h.lower() for h in hosts)}
        self._owner = owner
        self._attempts = Attempts()
        self._wants_key: bool | None = None
        self._asked = float("-inf")
        self._asking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        scope["headers"] = [(k, v) for k, v in scope["headers"] if k != b"x-forwarded-prefix"]
        headers = Headers(scope=scope)
        answer = self._stranger(scope, headers)
        if answer is None and scope["type"] == "http":
            answer = await self._entrance(scope, receive, headers)
        if answer is None:
            answer = await self._session(scope, headers)
        if answer is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # before accepting: status 403
        else:
            await answer(scope, receive, _with_headers(send))

    # ---- who calls --------------------------------------------------------------------------

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuses names that another site may have pointed here, and what another site sends."""
        host = headers.get("host", "")
        if not self._knows(host):
            return Response(
                f"{_name_of(host) or 'This name'} is not a name of this dashboard: start it with "
                "--allow-host NAME, or use its address.\n",
                421, media_type="text/plain",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is None:
            page = headers.get("sec-fetch-mode") == "navigate" and scope.get("method") == "GET"
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site") and not page
        else:
            foreign = origin.lower().partition("://")[2] != host.lower()
        if foreign:
            return Response("Another site may not use this dashboard.\n", 403,
                            media_type="text/plain")  # fmt: skip
        return None

    def _knows(self, host: str) -> bool:
        name = _name_of(host)
        if name in self._hosts or name.endswith(".localhost"):
            return True
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True  # an address cannot be pointed elsewhere
        return False

    # ---- log in, log out ----------------------------------------------------------------------

    async def _entrance(self, scope: Scope, receive: Receive, headers: Headers) -> Response | None:
        path, method = scope["path"], scope["method"]
        if path == self._prefix:
            return RedirectResponse(self._prefix + "/", 307)
        if path == self._prefix + "/login":
            if method == "POST":
                return await self._log_in(scope, receive, headers)
            query = parse_qs(scope["query_string"].decode("latin-1"))
            return login_page(self._target(query.get("next", [""])[0]), self._prefix)
        if path == self._prefix + "/logout":
            if method != "POST":
                return RedirectResponse(self._prefix + "/", 303)
            if given := self._cookie(scope, headers):
                self._sessions.end(given)
            leaving = RedirectResponse(self._prefix + "/login", 303)
            leaving.delete_cookie(_cookie_name(scope), path=self._prefix)
            return leaving
        return None

    async def _log_in(self, scope: Scope, receive: Receive, headers: Headers) -> Response:
        form = None
        with contextlib.suppress(TimeoutError):
            form = await asyncio.wait_for(_form(receive), FORM_S)
        if form is None:
            return Response("That is no login.\n", 413, media_type="text/plain")
        target = self._target(form.get("next", ""))
        address = (scope.get("client") or ("", 0))[0]
        wait_s = self._attempts.wait_s(address)
        if wait_s > 0:
            said = f"Too many logins have failed; try again in {wait_s:.0f} s."
            return login_page(target, self._prefix, said, 429, retry_after_s=wait_s)
        key = form.get("key", "").strip()
        if not key or len(key) > MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
            self._attempts.failed(address)
            return login_page(target, self._prefix, "This is no key.", 401)
        self._attempts.failed(address)  # taken back below; many at once count at once
        backend = Backend(self._sessions.url, key)
        refused = await backend.wants_key()
        if refused is not False:
            await backend.close()
            if refused is None:
                self._attempts.took_back(address)
                return login_page(
                    target, self._prefix, "The server cannot be asked now; try again.", 502
                )
            return login_page(target, self._prefix, "The server does not know this key.", 401)
        self._attempts.took_back(address)
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            _cookie_name(scope),
            self._sessions.start(backend),
            path=self._prefix,
            httponly=True,
            samesite="strict",
            secure=scope["scheme"] == "https",
        )
        return answer

    def _target(self, wanted: str) -> str:
        """Where a login leads: one of our pages, whatever was asked for."""
        return self._prefix + (wanted if wanted in self._pages else "/")

    # ---- session --------------------------------------------------------------------------------

    async def _session(self, scope: Scope, headers: Headers) -> Response | None:
        given = self._cookie(scope, headers)
        backend = self._sessions.find(given) if given else None
        path = scope["path"].removeprefix(self._prefix)
        if backend is None and await self._key_wanted():
            if path in self._pages:
                query = urlencode({"next": path})
                return RedirectResponse(f"{self._prefix}/login?{query}", 303)
            return Response("Log in first.\n", 401, media_type="text/plain")
        backend = backend or self._sessions.visitor
        query_string = scope.get("query_string", b"").decode("latin-1")
        page_id = parse_qs(query_string).get("client_id", [""])[0]
        nameless = not page_id and path.startswith("/_nicegui_ws/")  # it could name any later
        if nameless or (page_id and self._owner(page_id) not in (None, backend)):
            return Response("This page belongs to another session.\n", 403,
                            media_type="text/plain")  # fmt: skip
        scope["headrace.backend"] = backend
        return None

    async def _key_wanted(self) -> bool:
        async with self._asking:  # nobody slips in while it is not known yet
            if time.monotonic() - self._asked > BELIEF_S:
                known = await self._sessions.visitor.wants_key()
                self._wants_key = self._wants_key if known is None else known
                self._asked = time.monotonic()
        return self._wants_key is True

    def _cookie(self, scope: Scope, headers: Headers) -> str | None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(_cookie_name(scope))
        except CookieError:
            return None
        return morsel.value if morsel else None


def _cookie_name(scope: Scope) -> str:
    """With the port: cookies do not tell ports apart, and two dashboards are two."""
    return f"headrace_ui_{(scope.get('server') or ('', 0))[1]}"


def _name_of(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    with contextlib.suppress(ValueError):
        return (urlsplit(f"//{host}").hostname or "").lower()
    return ""


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("content-security-policy", PAGE_CSP)
        await send(message)

    return sending


async def _form(receive: Receive) -> dict[str, str] | None:
    """A small form's fields; None when it is not small."""
    body = b""
    while True:
        message: dict[str, Any] = dict(await receive())
        body += message.get("body", b"")
        if len(body) > MAX_FORM_BYTES or message["type"] == "http.disconnect":
            return None
        if not message.get("more_body"):
            break
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    except ValueError:
        return None
    return {name: values[0] for name, values in fields.items()}
