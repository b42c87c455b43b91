"""What operators ask: is it alive, what is it, how much does it do. GET only."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace import __version__
from headrace.server.context import context_of, open_door
from headrace.server.errors import ApiError


async def health(request: Request) -> Response:
    """200 when requests can be served; 503 while loading, stopping, or when the step loop is stuck
    or gone."""
    context = context_of(request)
    door = open_door(request)
    stuck = door.loop.busy_for_s
    if stuck > context.settings.stall_timeout_s:
        raise ApiError(503, f"The engine has been in one step for {stuck:.0f} s.")
    return JSONResponse({"status": "ok"})


async def ping(request: Request) -> Response:
    """Whether the process answers at all."""
    return Response("pong", media_type="text/plain")


async def version(request: Request) -> Response:
    """Headrace's version."""
    return JSONResponse({"version": __version__})


async def load(request: Request) -> Response:
    """How busy the server is now. paused: sequences that wait for a slow reader."""
    door = open_door(request)
    running, waiting = door.num_running_waiting
    return JSONResponse({
        "server_load": door.num_open, "running": running, "waiting": waiting,
        "paused": door.num_paused, "max": door.max_open,
    })  # fmt: skip


async def metrics(request: Request) -> Response:
    """Prometheus metrics; OpenMetrics for who asks for it. docs/metrics.md explains them."""
    body, content_type = request.app.state.exposition.text(request.headers.get("accept", ""))
    return Response(body, headers={"content-type": content_type})
