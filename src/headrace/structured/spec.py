"""StructuredOutputs: what a request's text has to look like. Plain values, checked for form.

Field names are vLLM's. Whether the schema or grammar can be honoured is found out where it is
compiled (`compiler.py`); this file knows no grammar library and no tokenizer.
"""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import UsageError


@dataclass(frozen=True)
class StructuredOutputs:
    """Exactly one of the fields is given. Immutable and hashable.

    json: a JSON schema, as text or as plain values; kept as text. The output is JSON without blanks
        between its parts.
    json_object: any JSON object.
    regex: the whole output matches it (Rust's syntax: no look-around, no back-references).
    choice: the output is one of these strings.
    grammar: a Lark grammar in llguidance's dialect, or llama.cpp's GBNF.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise UsageError("structured_outputs.json_object must be true or false.")
        given = [f.name for f in fields(self) if getattr(self, f.name) not in (None, False)]
        if self.json is False and "json" not in given:
            given.insert(0, "json")
        if len(given) != 1:
            names = ", ".join(f.name for f in fields(self))
            what = "none was" if not given else f"{' and '.join(given)} were"
            raise UsageError(f"structured_outputs takes exactly one of {names}; {what} given.")
        self._set("json", None if self.json is None else _schema_text(self.json))
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise UsageError(f"structured_outputs.{name} must be text that is not empty.")
        if self.choice is not None:
            self._set("choice", _choices(self.choice))
        for text in (self.json, self.regex, self.grammar, *(self.choice or ())):
            _check_unicode(text)

    @classmethod
    def from_dict(cls, values: object) -> StructuredOutputs:
        """From a mapping of field names, as JSON brings it. Raises UsageError; see the class."""
        if not isinstance(values, Mapping):
            raise UsageError("structured_outputs must be a mapping with one of its fields.")
        known = {f.name for f in fields(cls)}
        for name in values:
            if name not in known:
                raise UsageError(
                    f"Unknown field {str(name)[:80]!r} of structured_outputs; known are "
                    f"{', '.join(sorted(known))}."
                )
        return cls(**values)

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(f.name for f in fields(self) if getattr(self, f.name) not in (None, False))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def _schema_text(schema: object) -> str:
    """The schema as compact JSON text. Raises UsageError."""
    if isinstance(schema, str | bytes):
        try:
            schema = json_text.loads(schema, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"structured_outputs.json is text, but no JSON schema: {_short(error)}."
            ) from None
    if not isinstance(schema, Mapping | bool):
        raise UsageError("structured_outputs.json must be a JSON schema: an object, true or false.")
    try:
        return json_text.dumps(
            schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"structured_outputs.json is no plain JSON: {_short(error)}.") from None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it holds {type(value).__name__}")


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence) or not value:
        raise UsageError(
            "structured_outputs.choice must be a list of at least one text to choose from."
        )
    for item in value:
        if not isinstance(item, str) or not item:
            raise UsageError("structured_outputs.choice must hold texts that are not empty.")
    return tuple(dict.fromkeys(value))


def _check_unicode(text: object) -> None:
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(
                "structured_outputs holds a lone surrogate: it is not Unicode."
            ) from None


def _short(error: Exception) -> str:
    text = str(error).strip().rstrip(".") or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
