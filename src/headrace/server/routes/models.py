"""What is served: GET /v1/models, /v1/models/{id}, and /props for llama.cpp's clients."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace import __version__
from headrace.formats.chat_template import special_tokens
from headrace.server.context import context_of, open_door
from headrace.server.door import Door
from headrace.server.intake.common import check_served


async def models(request: Request) -> Response:
    """The model, under each of its names."""
    door = open_door(request)
    names = context_of(request).settings.served_model_names
    return JSONResponse({"object": "list", "data": [_card(door, name) for name in names]})


async def model(request: Request) -> Response:
    """One of them. 404 for another."""
    name = request.path_params["model_id"]
    door = open_door(request)
    check_served(door, name)
    return JSONResponse(_card(door, name))


async def props(request: Request) -> Response:
    """The model and its limits, under llama-server's names."""
    door = open_door(request)
    settings, tokens = door.settings, special_tokens(door.texts.tokenizer)
    answer = {
        "default_generation_settings": {"n_ctx": door.max_model_len},
        "total_slots": door.max_num_seqs,
        "model_alias": settings.model_name,
        "model_path": door.model.path.name,
        "bos_token": tokens["bos_token"],
        "eos_token": tokens["eos_token"],
        "chat_template": door.texts.template_source,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"headrace-{__version__}",
    }
    return JSONResponse(answer)


def _card(door: Door, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": door.created,
        "owned_by": "headrace",
        "root": door.model.name,
        "max_model_len": door.max_model_len,
    }
