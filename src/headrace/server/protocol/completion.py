"""POST /v1/completions."""

from __future__ import annotations

from pydantic import Field

from headrace.server.protocol.common import Integer, List, SamplingFields
from headrace.server.protocol.formats import FormatFields


class CompletionRequest(SamplingFields, FormatFields):
    """See OpenAI's legacy completions; the extensions are vLLM's and llama.cpp's."""

    prompt: str | List[str] | List[Integer] | List[List[Integer]] = Field(
        description="A text, texts, token ids, or lists of token ids."
    )
    max_tokens: Integer | None = None
    echo: bool | None = None
    logprobs: Integer | None = Field(None, description="0 … 20.")
    suffix: str | None = Field(
        None, description="Text after the gap: the model writes what belongs between."
    )
    best_of: Integer | None = None
    add_special_tokens: bool | None = None
