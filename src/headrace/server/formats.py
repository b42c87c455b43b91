"""From the request fields that shape an answer to the one StructuredOutputs they mean.

    response_format, structured_outputs, guided_*, json_schema, grammar ─▶ StructuredOutputs | None

More than one is a 400 that names them: nothing is merged, nothing is passed over. Compiling is the
door's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError
from headrace.server.door import Door
from headrace.server.errors import ApiError, invalid
from headrace.server.protocol.formats import FormatFields
from headrace.structured.compiler import CompiledGrammar
from headrace.structured.spec import StructuredOutputs

#: Field → the field of StructuredOutputs that takes its value.
_DIRECT = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}
_OWN_NAME = re.compile(r"structured_outputs(\.\w+)?")


@dataclass(frozen=True, slots=True)
class Format:
    """What an answer must follow. place: where the request says so, "response_format.schema"."""

    place: str
    outputs: StructuredOutputs

    @classmethod
    def of(cls, place: str, **outputs: Any) -> Format:
        """Raises ApiError naming the place."""
        try:
            return cls(place, StructuredOutputs.from_dict(outputs))
        except UsageError as error:
            raise _named(error, place) from None


async def answer_grammar(door: Door, body: FormatFields) -> CompiledGrammar | None:
    """What the answer must follow, compiled; None = anything. Raises ApiError naming the field."""
    asked = answer_format(body)
    return None if asked is None else await compiled(door, asked)


async def compiled(door: Door, asked: Format) -> CompiledGrammar:
    """Raises ApiError naming the place of what cannot be honoured."""
    try:
        return await door.texts.compile(asked.outputs)
    except UsageError as error:
        raise _named(error, asked.place) from None


def answer_format(body: FormatFields) -> Format | None:
    """What the request asks for. Raises ApiError for two things at once, or a wrong one."""
    asked: dict[str, Format] = {}
    if body.response_format is not None:
        wanted = response_format(body.response_format, "response_format")
        if wanted is not None:
            asked["response_format"] = wanted
    if body.structured_outputs is not None:
        values = body.structured_outputs.model_dump(by_alias=True, exclude_none=True)
        asked["structured_outputs"] = Format.of("structured_outputs", **values)
    for name, kind in _DIRECT.items():
        value = getattr(body, name)
        if value is not None and value != "":  # llama.cpp's clients send an empty grammar
            asked[name] = Format.of(name, **{kind: value})
    if len(asked) > 1:
        raise invalid(
            f"{' and '.join(asked)} were given; an answer can follow only one of them.",
            list(asked)[1],
        )
    return next(iter(asked.values()), None)


def response_format(value: Mapping[str, Any], name: str) -> Format | None:
    """OpenAI's response_format, and llama.cpp's json_object with a schema; None for text. name: of
    the field. Raises ApiError."""
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        if value.get("schema") is None:
            return Format.of(name, json_object=True)
        return _of_schema(value, name)
    if kind == "json_schema":
        inner = value.get("json_schema")
        if inner is None:  # as in the Responses API, and llama.cpp's short form
            return _of_schema(value, name)
        if not isinstance(inner, Mapping):
            raise invalid(f"{name}.json_schema must be an object with a schema.", name)
        return _of_schema(inner, f"{name}.json_schema")
    raise invalid(
        f"{name}.type must be text, json_object or json_schema, not {str(kind)[:40]!r}.", name
    )


def _of_schema(holder: Mapping[str, Any], place: str) -> Format:
    schema = holder.get("schema")
    if not isinstance(schema, Mapping | bool):
        what = "is missing" if schema is None else "is not an object"
        raise invalid(f"{place}.schema {what}: the JSON schema to follow.", _field(place))
    return Format.of(f"{place}.schema", json=schema)


def _named(error: UsageError, place: str) -> ApiError:
    """The same error, speaking of the field that the request has."""
    message = str(error)
    if place != "structured_outputs":
        message = _OWN_NAME.sub(place, message, count=1)
    return invalid(message, _field(place))


def _field(place: str) -> str:
    return place.partition(".")[0]
