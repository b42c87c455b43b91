"""Growing: a server asked to go on with a branch, token by token.

Knows what requests and answers look like, and nothing of pages.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from headrace.ui.backend import Backend, BackendError
from headrace.ui.facts.branch import Branch
from headrace.ui.facts.traces import Token, read_token


async def prompt_ids(backend: Backend, text: str, as_chat: bool) -> tuple[int, ...]:
    """The ids of a prompt, as text or as the first message of a conversation."""
    if as_chat:
        asked: dict[str, Any] = {
            "messages": [{"role": "user", "content": text}],
            "add_generation_prompt": True,
        }
    else:
        asked = {"prompt": text}
    return tuple((await backend.post("/tokenize", asked))["tokens"])


async def grow(
    backend: Backend, branch: Branch, body: Mapping[str, Any]
) -> AsyncGenerator[Token, None]:
    """Adds tokens to a branch as they come, and gives each. Raises BackendError."""
    stream = backend.stream("/v1/completions", body)
    async with contextlib.aclosing(stream) as events:
        async for event in events:
            branch.account.read(event)
            for choice in event.get("choices") or ():
                for token in _tokens(choice):
                    branch.tokens.append(token)
                    yield token


def _tokens(choice: Mapping[str, Any]) -> list[Token]:
    """The tokens of one chunk; with speculation there are several."""
    traces = choice.get("sampler_trace") or ()
    told = choice.get("logprobs") or {}
    texts = told.get("tokens") or [choice.get("text", "")]
    logprobs = told.get("token_logprobs") or []
    try:
        return [
            read_token(
                trace,
                texts[index] if index < len(texts) else "",
                logprobs[index] if index < len(logprobs) else None,
            )
            for index, trace in enumerate(traces)
        ]
    except (KeyError, TypeError, ValueError):
        raise BackendError(
            "The server's trace has a form that is not known here.", "failed"
        ) from None
