"""What the text of an answer has to look like: OpenAI's, vLLM's and llama.cpp's names for it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from headrace.server.protocol.common import List, RequestBody


class StructuredFields(BaseModel):
    """vLLM's structured_outputs; exactly one of its fields."""

    model_config = ConfigDict(strict=True, extra="forbid")

    json_: str | dict[str, Any] | bool | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: List[str] | None = None
    grammar: str | None = Field(None, description="Lark in llguidance's dialect, or GBNF.")


class FormatFields(RequestBody):
    """At most one of them."""

    response_format: dict[str, Any] | None = Field(
        None,
        description="{type: text | json_object | json_schema, json_schema: {name, schema, strict}};"
        " json_object may carry a schema, as llama.cpp's does.",
    )
    structured_outputs: StructuredFields | None = None
    guided_json: str | dict[str, Any] | bool | None = Field(None, description="vLLM's older name.")
    guided_regex: str | None = None
    guided_choice: List[str] | None = None
    guided_grammar: str | None = None
    json_schema: str | dict[str, Any] | bool | None = Field(None, description="llama.cpp's name.")
    grammar: str | None = Field(None, description="llama.cpp's GBNF, or Lark.")
