"""Branch: one continuation of a prompt, token by token, each with what it was drawn from.

Pure: `headrace.ui.growing` asks a server for the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.ui.facts.talk import Account
from headrace.ui.facts.traces import Token


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
