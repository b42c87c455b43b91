"""Tools and reasoning of one chat request: what goes into its prompt, and how answers are read.

    tools, tool_choice ─▶ ToolRequest ─┬─ ToolStyle (of the template) ─▶ messages, tools
                                       └─ AnswerFormat ─▶ parser, grammar

Knows the door and the parsing room; no engine and no bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.errors import UsageError
from headrace.formats.chat_template import ChatTemplate
from headrace.server.door import Door
from headrace.server.errors import ApiError, invalid
from headrace.server.formats import Format, compiled
from headrace.server.parsing.answer import AnswerFormat
from headrace.server.parsing.reasoning import reasoning_format
from headrace.server.parsing.tool_grammar import schema_line, tool_grammar
from headrace.server.parsing.tool_request import ToolRequest, read_tools
from headrace.server.parsing.tool_style import ToolStyle, needs_style
from headrace.structured.compiler import CompiledGrammar
from headrace.structured.grammar import lark_token

#: Tokens at the end of a prompt in which the template may have opened the reasoning.
_TAIL = 8

_ROLES = ("developer", "system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation for its template. messages, tools: as the template takes them. request: what
    was asked. style: None where nothing in it has to do with tools."""

    template: ChatTemplate
    messages: Sequence[Mapping[str, Any]]
    tools: list[dict[str, Any]] | None
    request: ToolRequest
    style: ToolStyle | None


def asked_tools(tools: object, tool_choice: object, parallel_tool_calls: object) -> ToolRequest:
    """The request's three fields. Raises ApiError naming the field."""
    try:
        return read_tools(tools, tool_choice, parallel_tool_calls)
    except UsageError as error:
        message = str(error)
        field = "parallel_tool_calls" if message.startswith("parallel") else "tools"
        field = "tool_choice" if message.startswith("tool_choice") else field
        raise invalid(message, field) from None


async def dialogue(
    door: Door,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    request: ToolRequest,
) -> Dialogue:
    """The conversation as this template takes it. Raises PromptError for malformed calls, ApiError
    for unknown roles, and for tools where the server reads none."""
    _check_roles(messages, template)
    if not needs_style(messages, request):
        return Dialogue(template, messages, None, request, None)
    style = await door.texts.tool_style(template)
    if request.enforced and style.form == "none":
        raise invalid("This server reads no tool calls: --tool-call-parser is none.", "tool_choice")
    return Dialogue(
        template, style.messages(messages, request), style.tools(request), request, style
    )


def _check_roles(messages: Sequence[Mapping[str, Any]], template: ChatTemplate) -> None:
    """Most templates write any role as it stands, so that a mistyped one would pass unnoticed. A
    role of its own is one that the template's text quotes."""
    for number, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or not role or role in _ROLES:
            continue
        shown = role[:40]
        if f"'{shown}'" not in template.source and f'"{shown}"' not in template.source:
            raise invalid(
                f"messages[{number}].role must be {', '.join(_ROLES)}, not {shown!r}.", "messages"
            )


def reading(
    door: Door, talk: Dialogue, prompt: Sequence[int], *, shaped: bool = False
) -> AnswerFormat:
    """How the answers to this prompt are read. shaped: a format of the request's own says what they
    look like; then they are content as they stand. Raises ApiError where a call is asked for, too.
    """
    if shaped:
        if talk.request.enforced:
            raise invalid(
                "tool_choice asks for a call and another field for a format of the answer; it can "
                "follow only one of them.",
                "tool_choice",
            )
        return AnswerFormat()
    tail = door.texts.tokenizer.decode(prompt[-_TAIL:], skip_special=False)
    request, style = talk.request, talk.style
    return AnswerFormat(
        tools="none" if style is None else style.form,
        reasoning=reasoning_format(talk.template.source, tail, door.settings.reasoning_parser),
        functions=tuple(function.name for function in request.callable),
        parallel=request.parallel,
    )


async def call_grammar(door: Door, request: ToolRequest, form: AnswerFormat) -> CompiledGrammar:
    """The grammar that leaves nothing but a call. Raises ApiError naming the function whose schema
    cannot be enforced."""
    assert form.tools != "none"
    text = tool_grammar(
        request, form.tools, partial(lark_token, door.texts.tokenizer), form.reasoning
    )
    try:
        return await compiled(door, Format.of("tools", grammar=text))
    except ApiError as error:
        found = _SCHEMA_ERROR.search(error.message)
        if found is None:
            raise
        number = schema_line(text, int(found[1]))
        raise invalid(
            f"{_place(request, number)} cannot be enforced: {found[2].rstrip('.')}.", "tools"
        ) from None


#: How the compiler of grammars reports a schema: line, reason, and then the grammar around it.
_SCHEMA_ERROR = re.compile(r"at (\d+)\(\d+\): failed to compile JSON schema: (.*?)(?= \d+ \| |$)")


def _place(request: ToolRequest, number: int | None) -> str:
    """The parameters of the n-th function that may be called, by their place in the request."""
    if number is None:
        return "tools"
    return f"tools[{request.functions.index(request.callable[number])}].function.parameters"
