"""How a request's messages become a prompt: the chat template's options, the same for every
route that has messages. Knows no template."""

from __future__ import annotations

from typing import Any, Protocol


class Conversation(Protocol):
    """The fields of a request that say how its messages become a prompt."""

    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...


def template_options(body: Conversation) -> dict[str, Any]:
    """Options of formats.chat_template.ChatTemplate.render, tools left out."""
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return {
        "add_generation_prompt": body.add_generation_prompt is not False,
        "continue_final_message": bool(body.continue_final_message),
        "variables": variables,
    }
