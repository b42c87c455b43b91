"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace.server.context import check_model, context_of, open_door
from headrace.server.door import Door


async def models(request: Request) -> Response:
    """The model, under each of its names."""
    door = open_door(request)
    names = context_of(request).settings.served_model_names
    return JSONResponse({"object": "list", "data": [_card(door, name) for name in names]})


async def model(request: Request) -> Response:
    """One of them. 404 for another."""
    name = request.path_params["model_id"]
    check_model(request, name)
    return JSONResponse(_card(open_door(request), name))


def _card(door: Door, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": door.created,
        "owned_by": "headrace",
        "root": door.model.name,
        "max_model_len": door.max_model_len,
    }
