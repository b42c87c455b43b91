"""The application: which path leads to which route, and how errors look. Knows no engine."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from headrace import __version__
from headrace.errors import HeadraceError
from headrace.server.context import Context
from headrace.server.document import (
    ERROR_RESPONSE,
    STREAM_RESPONSE,
    DocumentedApp,
    body_of,
    parameters,
)
from headrace.server.errors import ApiError, api_error
from headrace.server.exposition import Exposition
from headrace.server.middleware import Entrance
from headrace.server.observer import Observer
from headrace.server.protocol.cache import PinRequest, ReleaseRequest, ResetRequest, SaveRequest
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.completion import CompletionRequest
from headrace.server.protocol.embedding import EmbeddingRequest
from headrace.server.protocol.response import ResponseRequest
from headrace.server.protocol.tokens import (
    ApplyTemplateRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from headrace.server.respond import ClientLeft
from headrace.server.routes import (
    cache,
    chat,
    completions,
    embeddings,
    looking,
    models,
    operations,
    responses,
    tokens,
)

Route = Callable[[Request], Awaitable[Response]]

#: Path → route; the second of a POST is the body's model.
GET: dict[str, Route] = {
    "/v1/models": models.models,
    "/v1/models/{model_id:path}": models.model,
    "/health": operations.health,
    "/ping": operations.ping,
    "/version": operations.version,
    "/load": operations.load,
    "/props": models.props,
    "/tokenizer_info": tokens.tokenizer_info,
    "/metrics": operations.metrics,
    "/cache": cache.look,
    "/events": looking.events,
    "/kv_map": looking.kv_map,
    "/prefix_tree": looking.prefix_tree,
    "/limits": looking.limits,
}
#: Path → what may stand behind its question mark.
QUERY: dict[str, dict[str, str]] = {
    "/cache": {"cache_salt": "Whose pins are listed, and whose part of the tree is marked."},
    "/events": {
        "interval": "Seconds between two snapshots, 0.25 … 10; default 0.5.",
        "count": "End after so many snapshots; default 0: no end.",
    },
    "/kv_map": {
        "group": "KV group, from 0.",
        "max": "Most letters, up to 16384; default 4096.",
    },
    "/prefix_tree": {"max_nodes": "Most nodes, up to 1000; default 200."},
    "/limits": {
        "batch": "Sequences of the decode step; default 1.",
        "context": "Positions of each; default 512.",
        "prompt": "Tokens of the prefill step; default 128.",
    },
}
POST: dict[str, tuple[Route, type[BaseModel]]] = {
    "/v1/chat/completions": (chat.chat_completions, ChatRequest),
    "/v1/completions": (completions.completions, CompletionRequest),
    "/v1/responses": (responses.responses, ResponseRequest),
    "/v1/embeddings": (embeddings.embeddings, EmbeddingRequest),
    "/tokenize": (tokens.tokenize, TokenizeRequest),
    "/detokenize": (tokens.detokenize, DetokenizeRequest),
    "/apply-template": (tokens.apply_template, ApplyTemplateRequest),
    "/cache/pin": (cache.pin, PinRequest),
    "/cache/release": (cache.release, ReleaseRequest),
    "/cache/reset": (cache.reset, ResetRequest),
    "/cache/save": (cache.save, SaveRequest),
    "/reset_prefix_cache": (cache.reset, ResetRequest),
}
#: Of these, those whose body may be missing.
OPTIONAL_BODY = frozenset({"/cache/reset", "/cache/save", "/reset_prefix_cache"})
#: Routes that do not answer in JSON.
PLAIN_TEXT = frozenset({"/ping", "/metrics"})
EVENTS = frozenset({"/events"})


def build_app(context: Context) -> FastAPI:
    """The application over a context, whose door may come later."""
    settings = context.settings
    observer = Observer(context)
    middleware = [Middleware(Entrance, api_keys=settings.api_keys, on_end=observer.ended)]
    if settings.allow_origins:  # outermost: a browser's preflight carries no key
        middleware.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.allow_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "x-headrace-ignored", "x-headrace-warning"],
            ),
        )
    app = DocumentedApp(
        [model for _, model in POST.values()],
        title="Headrace",
        version=__version__,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        middleware=middleware,
    )
    app.state.context = context
    app.state.observer = observer
    app.state.exposition = Exposition(context)
    for path, route in GET.items():
        app.add_api_route(
            path,
            route,
            methods=["GET"],
            response_model=None,
            response_class=_response_class(path),
            responses=ERROR_RESPONSE,
            openapi_extra=parameters(path, QUERY.get(path, {})),
        )
    for path, (route, model) in POST.items():
        app.add_api_route(
            path,
            route,
            methods=["POST"],
            response_model=None,
            responses={**(STREAM_RESPONSE if _streams(model) else {}), **ERROR_RESPONSE},
            openapi_extra=body_of(model, required=path not in OPTIONAL_BODY),
        )
    _add_error_handlers(app)
    return app


class _Events(Response):
    media_type = "text/event-stream"


def _response_class(path: str) -> type[Response]:
    """What the document says of it."""
    if path in EVENTS:
        return _Events
    return PlainTextResponse if path in PLAIN_TEXT else JSONResponse


def _streams(model: type[BaseModel]) -> bool:
    return "stream" in model.model_fields


# ---- errors -------------------------------------------------------------------------------------


def _add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ApiError, _api)
    app.add_exception_handler(HeadraceError, _headrace)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientLeft, _left)
    app.add_exception_handler(ClientDisconnect, _left)


def _respond(error: ApiError) -> Response:
    return Response(
        error.to_bytes(), error.status, headers=error.headers, media_type="application/json"
    )


async def _api(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _respond(error)


async def _headrace(request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return _respond(api_error(error))


async def _http(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"[:200]
    message = {
        404: f"There is no route {where}.{_near_route(request.url.path[:80])}",
        405: f"{where}: this method is not allowed.",
    }
    refusal = ApiError(error.status_code, message.get(error.status_code, str(error.detail)))
    refusal.headers = dict(error.headers or {})
    return _respond(refusal)


def _near_route(path: str) -> str:
    """What somebody may have meant who left /v1 out of the base URL, had it twice, or mistyped."""
    near = difflib.get_close_matches(path, [r for r in (*POST, *GET) if "{" not in r], n=1)
    return f" Did you mean {near[0]}?" if near else " GET /openapi.json lists them."


async def _left(request: Request, error: Exception) -> Response:
    """499: nobody reads it; only the log does."""
    return Response(status_code=499)
