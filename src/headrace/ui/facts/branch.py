"""Branch: one continuation of a prompt, token by token, each with what it was drawn from.

Pure but for `prompt_ids` and `grow`, which ask a backend.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.ui.backend import Backend, BackendError
from headrace.ui.facts.talk import Account
from headrace.ui.facts.traces import Token, read_token


@dataclass(slots=True)
class Branch:
    """prompt: ids before the first token. parent and at: where it left another branch."""

    prompt: tuple[int, ...]
    tokens: list[Token] = field(default_factory=list)
    parent: Branch | None = None
    at: int = 0
    account: Account = field(default_factory=Account)

    def fork(self, index: int, candidate: int) -> Branch:
        """The same up to a token, and a candidate in its place."""
        instead = self.tokens[index]
        named = next((shot.probability(candidate) for shot in instead.shots[:1]), None)
        forced = replace(
            instead,
            id=candidate,
            text=instead.text_of(candidate),
            probability=named,
            forced=True,
        )
        return Branch(
            (*self.prompt, *(token.id for token in self.tokens[:index])), [forced], self, index
        )

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    def body(self, sampling: Mapping[str, Any], num_named: int) -> dict[str, Any]:
        """The request that goes on from here."""
        return {
            "prompt": [*self.prompt, *(token.id for token in self.tokens)],
            "add_special_tokens": False,
            "return_token_ids": True,
            "logprobs": 0,
            "sampler_trace": num_named,
            **sampling,
        }


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
