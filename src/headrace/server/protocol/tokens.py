"""POST /tokenize, /detokenize and /apply-template: vLLM's field names, and llama.cpp's."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace.server.protocol.common import Integer, List, RequestBody


class ConversationFields(RequestBody):
    """How messages become a prompt, for the routes that only show it."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: List[dict[str, Any]] | None = None
    reasoning_effort: str | None = Field(None, description="Handed to the chat template.")


class TokenizeRequest(ConversationFields):
    """One of prompt, content and messages."""

    prompt: str | None = None
    content: str | None = Field(None, description="llama.cpp's name of prompt.")
    messages: List[dict[str, Any]] | None = None
    add_special_tokens: bool | None = Field(
        None, description="BOS around a prompt; true by default, for messages false."
    )
    add_special: bool | None = Field(
        None, description="llama.cpp's name of the same; with content false by default."
    )
    parse_special: bool | None = Field(
        None, description="Special tokens written out become one id (default)."
    )
    return_token_strs: bool | None = None
    with_pieces: bool | None = Field(None, description="Objects {id, piece} instead of ids.")


class DetokenizeRequest(RequestBody):
    """Ids → text, special tokens included."""

    tokens: List[Integer]


class ApplyTemplateRequest(ConversationFields):
    """Messages → the text that /v1/chat/completions would tokenize."""

    messages: List[dict[str, Any]]
