"""Backend: everything the pages ask of a server, over HTTP, under one key.

Every failure becomes a `BackendError`: one sentence for the page. Knows no page.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import httpx

from headrace.errors import EndpointError
from headrace.ui.feed import Feed
from headrace.ui.wire import event_data, value_of, whole_body

#: Seconds to connect, and for an answer that is no stream.
CONNECT_S = 5.0
ANSWER_S = 30.0
#: Of a stream: the server breaks silence with a comment after 5 s.
SILENCE_S = 60.0
#: Longest event of a stream and longest answer; a server that sends more is not one of ours.
MAX_EVENT_BYTES = 8 << 20
MAX_ANSWER_BYTES = 64 << 20

_FAILURES = (httpx.HTTPError, httpx.InvalidURL, TimeoutError, RuntimeError, ValueError)

#: What a stream gives; to be closed (contextlib.aclosing) when it is left early.
Events = AsyncGenerator[dict[str, Any], None]


class BackendError(EndpointError):
    """The server refused or could not be reached; the message is one sentence for people.

    kind: "gone", "loading", "busy", "key", "refused" or "failed". retry_after_s: where it said so.
    """

    def __init__(self, message: str, kind: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry_after_s = retry_after_s


class Backend:
    """A client of one server. url: without /v1; key: sent as a bearer token, kept in memory. feed:
    the server's snapshots, read once for all who follow."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.used = time.monotonic()  # when something was last asked
        self._is_closed = False
        self.feed = Feed(lambda interval_s: self.events("/events", interval=interval_s))
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Accept-Encoding": "identity"}  # what is unpacked has no bound
            | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=64),
            verify=_trust(url),
            trust_env=False,  # the server is where the operator said, behind no proxy
            follow_redirects=False,  # the key goes nowhere else
        )

    @property
    def is_closed(self) -> bool:
        """Whether its session has ended."""
        return self._is_closed

    async def close(self) -> None:
        """Ends every open request and forgets the key."""
        self._is_closed = True
        self._http.headers.pop("Authorization", None)
        await self._http.aclose()

    async def get(self, path: str, **query: Any) -> Any:
        """The JSON of GET path. Raises BackendError."""
        return await self._ask("GET", path, params=query or None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON of POST path. Raises BackendError."""
        return await self._ask("POST", path, json=body)

    def stream(self, path: str, body: Mapping[str, Any]) -> Events:
        """The events of a generation until it ends. Leaving the iterator (`aclose`) closes the
        connection, and with it the server ends the request. Raises BackendError."""
        return self._events("POST", path, json={**body, "stream": True})

    def events(self, path: str = "/events", **query: Any) -> Events:
        """The events of a GET stream, as `/events?interval=0.5`, until the server ends it."""
        return self._events("GET", path, params=query or None)

    async def model_name(self) -> str:
        """What the server calls its model. Raises BackendError."""
        answer = await self.get("/v1/models")
        try:
            return str(answer["data"][0]["id"])[:200]
        except (LookupError, TypeError) as error:
            raise _unreachable(self.url, error) from None

    async def wants_key(self) -> bool | None:
        """Whether the server refuses this client for lack of a valid key; None: nobody says, since
        nobody answers, or somebody who looks at no key (too many connections)."""
        try:
            await self.get("/v1/models")
        except BackendError as error:
            return True if error.kind == "key" else None
        return False

    def _use(self) -> None:
        if self._is_closed:
            raise BackendError("This session has ended; log in again.", "key")
        self.used = time.monotonic()

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        self._use()
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._http.stream(method, path, **options) as answer,
            ):
                body = await whole_body(answer.aiter_raw(), MAX_ANSWER_BYTES)
            if answer.status_code != 200:
                raise _refusal(answer, body)
            return value_of(body)
        except _FAILURES as error:
            raise _unreachable(self.url, error) from None

    async def _events(self, method: str, path: str, **options: Any) -> Events:
        self._use()
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        try:
            async with self._http.stream(method, path, timeout=timeout, **options) as answer:
                if answer.status_code != 200:
                    async with asyncio.timeout(ANSWER_S):
                        body = await whole_body(answer.aiter_raw(), MAX_EVENT_BYTES)
                    raise _refusal(answer, body)
                async for data in event_data(answer.aiter_raw(), MAX_EVENT_BYTES):
                    event = value_of(data)
                    if not isinstance(event, dict):
                        raise ValueError("an event that is no object")
                    if "error" in event:
                        raise _told(event, "failed")
                    yield event
        except _FAILURES as error:
            raise _unreachable(self.url, error) from None


def _trust(url: str) -> ssl.SSLContext:
    """Whose certificates count: the usual ones, or those of SSL_CERT_FILE. Without TLS nobody's,
    which spares reading them for every log-in."""
    if url.lower().startswith("https:"):
        return httpx.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _refusal(answer: httpx.Response, data: bytes) -> BackendError:
    kind = {401: "key", 403: "key", 429: "busy", 503: "loading"}.get(
        answer.status_code, "refused" if answer.status_code < 500 else "failed"
    )
    try:
        body = value_of(data)
    except ValueError:
        body = {}
    after = answer.headers.get("retry-after", "")
    return _told(
        body if isinstance(body, dict) else {},
        kind,
        f"The server answered with status {answer.status_code}.",
        float(after) if after.isdecimal() else None,
    )


def _told(
    body: Mapping[str, Any],
    kind: str,
    otherwise: str = "The server failed.",
    retry_after_s: float | None = None,
) -> BackendError:
    error = body.get("error")
    said = error.get("message") if isinstance(error, dict) else error
    message = str(said)[:500] if said else otherwise
    if kind == "busy":
        message = f"The server is busy: {message}"
    elif kind == "key":
        message = "The server does not accept this key; log in again."
    return BackendError(message, kind, retry_after_s)


def _unreachable(url: str, error: Exception) -> BackendError:
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return BackendError(f"The server at {url} does not answer in time.", "gone")
    if isinstance(error, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return BackendError(
            f"The certificate of the server at {url} is not trusted here; SSL_CERT_FILE can name "
            "one that is.", "gone",
        )  # fmt: skip
    if isinstance(error, httpx.TransportError | RuntimeError):
        return BackendError(f"The server at {url} cannot be reached. Is it running?", "gone")
    return BackendError(f"What answers at {url} is no Headrace server.", "failed")
