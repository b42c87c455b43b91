"""Context: what the routes of one server share. The door exists once the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request

from headrace.server.body import Inbox, read_json
from headrace.server.door import Door
from headrace.server.errors import ApiError
from headrace.server.metrics import HttpMetrics
from headrace.server.settings import ServeSettings
from headrace.server.snapshots import Snapshots

#: Bodies of the largest size that may be on their way at once.
MAX_INBOX_BODIES = 16


@dataclass(slots=True)
class Context:
    """door: None while the model loads. load_error: why it could not be loaded."""

    settings: ServeSettings
    door: Door | None = None
    load_error: str | None = None
    draining: bool = False
    http: HttpMetrics = field(default_factory=HttpMetrics)
    snapshots: Snapshots = field(default_factory=Snapshots)
    inbox: Inbox = field(init=False)

    def __post_init__(self) -> None:
        self.inbox = Inbox(MAX_INBOX_BODIES * self.settings.max_body_bytes)


def context_of(request: Request) -> Context:
    return cast(Context, request.app.state.context)


def open_door(request: Request, *, to_look: bool = False) -> Door:
    """The door. Raises ApiError 503 while the model loads or the server stops. to_look: for who
    asks nothing of the engine, and may watch requests end while the server stops."""
    context = context_of(request)
    if context.door is None:
        raise ApiError(503, context.load_error or "Loading model", headers={"Retry-After": "1"})
    if context.draining and not to_look:
        raise ApiError(503, "The server is shutting down.", headers={"Retry-After": "5"})
    if not context.door.loop.alive:
        raise ApiError(503, "The engine has stopped; the server's log says why.")
    return context.door


async def json_body(request: Request, *, optional: bool = False) -> dict[str, Any]:
    """The request's JSON object, within the server's limits; {} where it may be missing (optional)
    and is. Raises ApiError."""
    context = context_of(request)
    settings = context.settings
    if optional and _has_no_body(request):
        return {}
    return await read_json(request, settings.max_body_bytes, settings.max_nesting, context.inbox)


def _has_no_body(request: Request) -> bool:
    """Nothing that a web page of another origin could send: browsers name the origin of a POST."""
    headers = request.headers
    return (
        headers.get("content-length", "0") == "0"
        and "transfer-encoding" not in headers
        and "content-type" not in headers
        and "origin" not in headers
    )
