"""How a chat template and its model do tool calls, found by asking the template.

The template renders a small conversation with a tool, a call and its result. Where these appear in
the text, and in which format, tells what the model was trained on; no names of models are needed.

    tools in the text, calls in a format that we read    the template's own way
    anything else                                        a system message of ours, and JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import PromptError, UsageError
from headrace.formats.chat_template import ChatTemplate
from headrace.server.parsing.answer import AnswerFormat, ToolFormat
from headrace.server.parsing.pieces import ToolCallStart
from headrace.server.parsing.tool_messages import CALL_SHAPES, CallShape, folded, shaped
from headrace.server.parsing.tool_request import ToolRequest

TOOL_PARSERS = ("auto", "hermes", "json", "none")

_NAME = "probe_function"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Probe",
        "parameters": {
            "type": "object",
            "properties": {"probe_key": {"type": "string", "description": "Probe"}},
            "required": ["probe_key"],
        },
    },
}
_QUESTION = {"role": "user", "content": "Probe?"}


def _probe_call(number: int) -> dict[str, Any]:
    arguments = json.dumps({"probe_key": f"probe_value{number}"})
    function = {"name": _NAME, "arguments": arguments}
    return {"id": f"call_012345678{number}", "type": "function", "function": function}


def _probe_result(number: int) -> dict[str, Any]:
    call_id, text = f"call_012345678{number}", f"probe_result{number}"
    return {"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": text}


_CONVERSATION: list[dict[str, Any]] = [
    _QUESTION,
    {"role": "assistant", "content": "", "tool_calls": [_probe_call(0), _probe_call(1)]},
    _probe_result(0),
    _probe_result(1),
]
#: What must be found in a rendering of it.
_NEEDLES = (_NAME, *(f"probe_{what}{number}" for what in ("value", "result") for number in (0, 1)))


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """form: of the answers. native: the template writes the tools. shape: how calls and results are
    given to the template; None: as ordinary text. system: the template takes a system message."""

    form: ToolFormat
    native: bool
    shape: CallShape | None
    system: bool

    def messages(
        self, messages: Sequence[Mapping[str, Any]], request: ToolRequest
    ) -> list[dict[str, Any]]:
        """The conversation as the template takes it, with the tools where it writes none itself.
        Raises PromptError."""
        result = folded(messages) if self.shape is None else shaped(messages, self.shape)
        if request.offered and not self.native:
            result = _with_instructions(result, instructions(request.tools()), system=self.system)
        return result

    def tools(self, request: ToolRequest) -> list[dict[str, Any]] | None:
        """The tools for the template; None when it gets none."""
        return request.tools() if request.offered and self.native else None


def needs_style(messages: Sequence[Mapping[str, Any]], request: ToolRequest) -> bool:
    """Whether a conversation has anything to do with tools."""
    return request.offered or any(
        isinstance(m, Mapping) and (m.get("tool_calls") or m.get("role") == "tool")
        for m in messages
    )


def tool_style(
    template: ChatTemplate, parser: str = "auto", shapes: Sequence[CallShape] = CALL_SHAPES
) -> ToolStyle:
    """How this template does tools. parser: one of TOOL_PARSERS; all but "auto" say in which format
    the answers are, and the template's own tools are then used if it has any. shapes: those that
    are tried; the template is rendered four times and once more for each (some milliseconds).
    Raises UsageError for an unknown parser, ModelFileError for a template that is broken or beyond
    its limits."""
    if parser not in TOOL_PARSERS:
        raise UsageError(
            f"tool-call-parser {parser!r} is unknown (known: {', '.join(TOOL_PARSERS)})."
        )
    takes_tools = _NAME in _rendered(template, [_QUESTION], [_TOOL])
    wants_tools = takes_tools and not _rendered(template, [_QUESTION], None)
    system = "Probe rules" in _rendered(
        template, [{"role": "system", "content": "Probe rules"}, _QUESTION], None
    )
    shape, found = _shape_and_form(template, [_TOOL] if takes_tools else None, shapes)
    if parser == "auto":
        if takes_tools and found is not None:
            return ToolStyle(found, True, shape, system)
        if wants_tools:  # made for nothing else, and in a format that we do not read
            return ToolStyle("json", True, shape, system)
        return ToolStyle("json", False, None, system)
    form: ToolFormat = "hermes" if parser == "hermes" else "json" if parser == "json" else "none"
    return ToolStyle(form, takes_tools, shape, system)


def _shape_and_form(
    template: ChatTemplate, tools: list[dict[str, Any]] | None, shapes: Sequence[CallShape]
) -> tuple[CallShape | None, Literal["hermes", "json"] | None]:
    """The first shape with which call and result appear in the text, and the call's format there:
    None when it is one we do not read."""
    for shape in shapes:
        text = _rendered(template, shaped(_CONVERSATION, shape), tools)
        _, question, text = text.partition(_QUESTION["content"])
        if question and all(needle in text for needle in _NEEDLES):
            return shape, _format_of(text)
    return None, None


def _format_of(text: str) -> Literal["hermes", "json"] | None:
    reader = AnswerFormat("hermes", functions=(_NAME,)).parser(lambda: "probe")
    pieces = reader.push(text) + reader.finish()
    if reader.num_complete and any(isinstance(piece, ToolCallStart) for piece in pieces):
        return "hermes"
    decoder = json.JSONDecoder()
    for start, character in enumerate(text):
        if character == "{":
            try:
                value, _ = decoder.raw_decode(text, start)
            except (ValueError, RecursionError):
                continue
            arguments = value.get("arguments", value.get("parameters"))
            if value.get("name") == _NAME and arguments == {"probe_key": "probe_value0"}:
                return "json"
    return None


def _rendered(
    template: ChatTemplate, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> str:
    """The text, or "" where the template refuses."""
    try:
        return template.render(messages, tools=tools)
    except PromptError:
        return ""


def instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message for templates that write no tools. The same for every tool_choice, so that
    the prompt's prefix stays the same."""
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. These are the functions, one JSON object per line, with a JSON "
        f"schema of their arguments:\n{lines}\n\n"
        "To call a function, answer with nothing but one JSON object:\n"
        '{"name": "<name of the function>", "arguments": {<its arguments>}}\n'
        "To call several, answer with a JSON list of such objects. When no function helps, answer "
        "in words."
    )


def _with_instructions(
    messages: list[dict[str, Any]], text: str, *, system: bool
) -> list[dict[str, Any]]:
    """The text behind the system message, as one, or at the head of the first message."""
    first, rest = messages[0], messages[1:]
    if first["role"] in ("system", "developer") or not system:
        before = [first["content"] or "", text]
        if first["role"] not in ("system", "developer"):
            before.reverse()
        return [{**first, "content": "\n\n".join(filter(None, before))}, *rest]
    return [{"role": "system", "content": text}, *messages]
