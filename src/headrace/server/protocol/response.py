"""POST /v1/responses."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from headrace.server.protocol.common import Integer, List, SamplingFields


class TextOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    format: dict[str, Any] | None = Field(
        None, description="{type: text | json_object | json_schema, name, schema, strict}"
    )
    verbosity: str | None = None


class ReasoningOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    effort: str | None = Field(None, description="Handed to the chat template.")


class ResponseRequest(SamplingFields):
    """See OpenAI's responses. Nothing is stored: every request brings its whole conversation. The
    extensions are those of chat."""

    input: str | List[dict[str, Any]] = Field(
        description="A text, or items: messages, function_call, function_call_output, reasoning."
    )
    instructions: str | None = Field(None, description="A system message in front.")
    max_output_tokens: Integer | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    store: bool | None = Field(None, description="Only false: nothing is stored.")
    previous_response_id: str | None = Field(None, description="Refused: nothing is stored.")
    include: List[str] | None = Field(
        None, description="message.output_text.logprobs; others have no effect."
    )
    top_logprobs: Integer | None = Field(None, description="0 … 20, of every output token.")
    tools: List[dict[str, Any]] | None = Field(
        None, description='Functions: {type: "function", name, description, parameters, strict}.'
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description='none, auto, required, or {type: "function", name}.'
    )
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
