"""The prefix cache: GET /cache, POST /cache/pin, /cache/release, /cache/reset, /cache/save."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.engine.core import Engine
from headrace.server.context import json_body, open_door
from headrace.server.errors import ApiError, invalid
from headrace.server.fields import ignored_fields
from headrace.server.intake.common import check_served
from headrace.server.intake.pin import read_pin
from headrace.server.protocol.cache import ReleaseRequest, ResetRequest, SaveRequest
from headrace.server.protocol.common import MAX_SALT, parse
from headrace.server.submit import ignored_header, submit


async def look(request: Request) -> Response:
    """What is cached: by salt (only one's own is named), pinned, in which pools, to what use."""
    door = open_door(request)
    salt = request.query_params.get("cache_salt", "")
    if len(salt) > MAX_SALT:
        raise invalid(f"cache_salt is longer than {MAX_SALT} characters.", "cache_salt")
    answer = door.cache_answer.of(await door.looks.look(), door.loop.meter, salt)
    return JSONResponse(answer)


async def pin(request: Request) -> Response:
    """Computes a prefix, where it is not cached, and keeps it until it is released."""
    return await submit(request, read_pin)


async def release(request: Request) -> Response:
    """Ends a pin. 404 where there is none of this id."""
    body = parse(ReleaseRequest, await json_body(request))
    door = open_door(request)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    if not await door.loop.ask(lambda engine: engine.cache.release(body.id)):
        raise ApiError(404, f"There is no pin {body.id[:80]!r}; its time may be over.", param="id")
    return JSONResponse({"id": body.id, "released": True}, headers=ignored_header(ignored))


async def reset(request: Request) -> Response:
    """Forgets all cached prefixes but pinned ones, or those too; what runs goes on."""
    body = parse(ResetRequest, await json_body(request, optional=True))
    door = open_door(request)
    check_served(door, body.model)
    ignored = ignored_fields(body)
    dropped = await door.loop.ask(lambda engine: _reset(engine, pins=body.pins is True))
    return JSONResponse({"reset": True, "positions": dropped}, headers=ignored_header(ignored))


async def save(request: Request) -> Response:
    """Saves the cached prefixes now, where the server keeps them on disk; what runs goes on."""
    body = parse(SaveRequest, await json_body(request, optional=True))
    door = open_door(request)
    check_served(door, body.model)
    if door.saves is None:
        raise invalid("The server was started without --kv-save, so there is no place to save to.")
    report = await door.saves.save()
    return JSONResponse(
        {
            "saved": report.reason is None,
            "reason": report.reason,
            "nodes": report.num_nodes,
            "positions": report.num_positions,
            "bytes": report.num_bytes,
            "left_out": report.num_left_out,
        },
        headers=ignored_header(ignored_fields(body)),
    )


def _reset(engine: Engine, *, pins: bool) -> int:
    """Positions that are gone."""
    tree = engine.cache.tree
    before = 0 if tree is None else tree.num_tokens
    engine.cache.clear(pins=pins)
    return before - (0 if tree is None else tree.num_tokens)
