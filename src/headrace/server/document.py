"""The OpenAPI document: what the bodies are, and that every error has one shape.

Routes take the plain request, because they check bodies by themselves (FastAPI's own check answers
in another shape); so what they take is told here. No behaviour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

_REF = "#/components/schemas/{model}"
_TEXT = {"type": "string"}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "integer", "null"]},
            },
        }
    },
}
#: Of every route.
ERROR_RESPONSE: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "Refused or failed.",
        "content": {"application/json": {"schema": _ERROR}},
    }
}
#: Of the routes that can stream.
STREAM_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, or its events with stream = true.",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}


def body_of(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What an operation says of its JSON body."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"content": content, "required": required}}


def parameters(path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """What an operation says of the parameters in its path, and of those behind a question mark:
    name → what it is."""
    names = [part[1:-1].partition(":")[0] for part in path.split("/") if part.startswith("{")]
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT} for name in names
    ]
    found += [
        {"name": name, "in": "query", "required": False, "schema": _TEXT, "description": text}
        for name, text in query.items()
    ]
    return {"parameters": found} if found else {}


class DocumentedApp(FastAPI):
    """An application whose document holds the schemas of its bodies and all that they refer to.

    bodies: the models of the bodies.
    """

    def __init__(self, bodies: Iterable[type[BaseModel]], **options: Any) -> None:
        super().__init__(**options)
        self._bodies = tuple(bodies)

    def openapi(self) -> dict[str, Any]:
        """The document; made once."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        document = super().openapi()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for model in self._bodies:
            schema = model.model_json_schema(ref_template=_REF)
            schemas.update(schema.pop("$defs", {}))
            schemas[model.__name__] = schema
        return document
