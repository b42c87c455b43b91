"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace.server.protocol.common import Integer, List, SamplingFields
from headrace.server.protocol.formats import FormatFields


class ChatRequest(SamplingFields, FormatFields):
    """See OpenAI's chat completions; the extensions are vLLM's and llama.cpp's."""

    messages: List[dict[str, Any]] = Field(
        description="{role, content}; roles developer, system, user, assistant, tool."
    )
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = Field(None, description="0 … 20, with logprobs.")

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = Field(None, description="Handed to the chat template.")

    tools: List[dict[str, Any]] | None = Field(
        None, description='Functions the model may call: {type: "function", function: {name, …}}.'
    )
    tool_choice: str | dict[str, Any] | None = Field(
        None, description='none, auto, required, or {type: "function", function: {name}}.'
    )
    parallel_tool_calls: bool | None = Field(None, description="false: one call at most.")
