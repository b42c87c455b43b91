"""POST /v1/embeddings."""

from __future__ import annotations

from pydantic import Field

from headrace.server.protocol.common import CacheFields, Integer, List


class EmbeddingRequest(CacheFields):
    """See OpenAI's embeddings; pooling is ours. A vector needs every position
    computed: what is said of the cache has no effect."""

    input: str | List[str] | List[Integer] | List[List[Integer]] = Field(
        description="A text, texts, token ids, or lists of token ids."
    )
    encoding_format: str | None = Field(None, description="float, or base64 of float32.")
    dimensions: Integer | None = Field(None, description="Only the model's own size.")
    pooling: str | None = Field(None, description="mean (default) or last: which tokens count.")
    add_special_tokens: bool | None = None
    priority: Integer | None = Field(None, description="Lower is served earlier; 0 is usual.")
    truncate_prompt_tokens: Integer | None = Field(
        None, description="Keep so many last tokens of an input; -1: what the context holds."
    )
    timeout: float | None = Field(None, description="Seconds after which the request is ended.")

    @property
    def stream(self) -> bool | None:
        """Vectors come whole."""
        return None
