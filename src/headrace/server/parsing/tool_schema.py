"""JSON schemas of functions' parameters: a first check, and the form in which they are enforced.

The check finds what is no schema at all (JSON Schema 2020-12, the keywords that hold schemas or
names), without recursion on the user's depth. It does not judge keywords it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from headrace.errors import UsageError

MAX_DEPTH = 64
MAX_SCHEMAS = 10_000

_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
#: Keywords that hold one schema, a list of them, or a mapping to them.
_ONE = (
    *("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
)
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
#: Beside these, properties do not say all about an object.
_COMBINING = ("$ref", "$dynamicRef", "anyOf", "allOf", "oneOf", "not", "if", "then", "else")


def check_schema(schema: object, field: str) -> None:
    """Raises UsageError, naming the field, unless this is the schema of an object."""
    if not isinstance(schema, Mapping):
        _refuse(field, "must be a JSON schema, an object")
    if schema.get("type", "object") != "object":
        _refuse(f"{field}.type", 'must be "object": a function\'s arguments are one')
    waiting: list[tuple[object, str, int]] = [(schema, field, 0)]
    count = 0
    while waiting:
        one, where, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_SCHEMAS:
            limit = f"{MAX_DEPTH} levels" if depth > MAX_DEPTH else f"{MAX_SCHEMAS:,} parts"
            _refuse(field, f"has more than {limit}")
        if isinstance(one, bool):
            continue
        if not isinstance(one, Mapping):
            _refuse(where, "must be a schema: an object, true or false")
        _check_words(one, where)
        waiting += ((inner, name, depth + 1) for inner, name in _inner(one, where))


def _check_words(schema: Mapping[str, Any], where: str) -> None:
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or not all(isinstance(k, str) and k in _TYPES for k in kinds):
        _refuse(f"{where}.type", f"must be one of {', '.join(sorted(_TYPES))}, or a list of these")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        _refuse(f"{where}.required", "must be a list of names")
    if "enum" in schema and not (isinstance(schema["enum"], list) and schema["enum"]):
        _refuse(f"{where}.enum", "must be a list with at least one value")
    if not isinstance(schema.get("$ref", ""), str):
        _refuse(f"{where}.$ref", "must be text")


def _inner(schema: Mapping[str, Any], where: str) -> Iterator[tuple[object, str]]:
    for keyword in _ONE:
        if keyword in schema:
            inner = schema[keyword]
            if keyword == "items" and isinstance(inner, list):  # drafts before 2020-12
                yield from ((one, f"{where}.items[{i}]") for i, one in enumerate(inner))
            else:
                yield inner, f"{where}.{keyword}"
    for keyword in _LISTS:
        inner = schema.get(keyword, [])
        if not isinstance(inner, list):
            _refuse(f"{where}.{keyword}", "must be a list of schemas")
        yield from ((one, f"{where}.{keyword}[{i}]") for i, one in enumerate(inner))
    for keyword in _MAPS:
        inner = schema.get(keyword, {})
        if not isinstance(inner, Mapping):
            _refuse(f"{where}.{keyword}", "must be an object of schemas")
        yield from ((one, f"{where}.{keyword}.{name[:40]}") for name, one in inner.items())


def enforceable(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a call's arguments as the grammar takes it: an object, with layout as models
    write it, and closed. Whatever it accepts, the user's schema accepts.

    Closed: objects that name their properties and say nothing of others get no others. A model that
    may invent properties does.
    """
    closed: dict[str, Any] = _closed(schema)
    closed.setdefault("type", "object")
    closed["x-guidance"] = {
        "whitespace_flexible": False,
        "item_separator": ", ?",
        "key_separator": ": ?",
    }
    return closed


def _closed(schema: Any) -> Any:
    """A copy with the objects closed that are reached by properties and items alone."""
    if not isinstance(schema, Mapping):
        return schema
    copy = {key: value for key, value in schema.items() if key != "x-guidance"}
    if any(keyword in copy for keyword in _COMBINING):
        return copy
    if isinstance(copy.get("properties"), Mapping):
        copy["properties"] = {k: _closed(v) for k, v in copy["properties"].items()}
        if "patternProperties" not in copy and "unevaluatedProperties" not in copy:
            copy.setdefault("additionalProperties", False)
    if "items" in copy:
        copy["items"] = _closed(copy["items"])
    return copy


def _refuse(field: str, what: str) -> NoReturn:
    raise UsageError(f"{field} {what}.")
