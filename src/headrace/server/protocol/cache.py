"""POST /cache/pin, /cache/release, /cache/save, /cache/reset (vLLM's name: /reset_prefix_cache)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from headrace.server.protocol.common import Integer, List, RequestBody, Salt
from headrace.server.protocol.tokens import ConversationFields


class PinRequest(ConversationFields):
    """One of prompt, messages and tokens: the prefix to keep. It is computed where it is not
    cached, in its turn like any other request."""

    prompt: str | None = None
    messages: List[dict[str, Any]] | None = Field(
        None, description="A conversation's beginning; add_generation_prompt is false by default."
    )
    tokens: List[Integer] | None = None
    add_special_tokens: bool | None = Field(None, description="BOS in front of a prompt (default).")
    cache_salt: Salt | None = Field(None, description="That of the requests which will use it.")
    ttl: float | None = Field(
        None, description="Seconds until it is released; without it, when you say so."
    )
    priority: Integer | None = Field(None, description="Lower is served earlier; 0 is usual.")
    timeout: float | None = Field(None, description="Seconds after which the request is ended.")

    @property
    def stream(self) -> bool | None:
        """A pin comes whole."""
        return None

    @property
    def truncate_prompt_tokens(self) -> int | None:
        """Nothing is cut off."""
        return None

    @property
    def cache_prompt(self) -> bool | None:
        """What is cached is what it wants."""
        return None


class ReleaseRequest(RequestBody):
    """Ends a pin. What it held stays cached like anything else."""

    id: str = Field(description="As /cache/pin gave it.")


class ResetRequest(RequestBody):
    """Forgets all cached prefixes of all salts."""

    pins: bool | None = Field(None, description="true: those that are pinned, too.")


class SaveRequest(RequestBody):
    """Saves all cached prefixes to the server's own directory."""
