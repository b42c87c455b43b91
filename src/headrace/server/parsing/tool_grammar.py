"""The grammar of an enforced tool call, as llguidance's Lark text, in the format that is parsed.

tool_choice "required" and a named function promise a call: the grammar leaves the model nothing
else to write. What it accepts, `answer.py` reads completely. Compiling it is another's business.
With "auto" there is no grammar.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

from headrace.server.parsing import reasoning, tagged_calls
from headrace.server.parsing.reasoning import ReasoningFormat
from headrace.server.parsing.tool_request import Function, ToolRequest
from headrace.server.parsing.tool_schema import enforceable

#: Calls in one answer, at most: a small model that may go on does not stop by itself.
MAX_CALLS = 8

#: A tag's text → its Lark item: one token where the vocabulary has one, else the text.
Tag = Callable[[str], str]


def tool_grammar(
    request: ToolRequest,
    form: Literal["hermes", "json"],
    tag: Tag,
    reasoning_form: ReasoningFormat = "none",
) -> str:
    """Lark text that accepts calls of the functions that may be called, and nothing else.

    tag: how tags are written (structured.grammar.lark_token). reasoning_form: reasoning may (or,
    when the prompt has opened it, must) come first. One call when calls may not be parallel or the
    function is named, else up to MAX_CALLS.
    """
    functions = request.callable
    several = request.parallel and request.named is None
    more = MAX_CALLS - 1
    lines = [f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}"]
    if form == "hermes":
        lines.append(
            f'block: {tag(tagged_calls.OPENING)} "\\n" call "\\n" {tag(tagged_calls.CLOSING)}'
        )
        calls = f'block ("\\n" block){{0,{more}}}' if several else "block"
    else:
        calls = f'call | "[" call (", " call){{0,{more}}} "]"' if several else "call"
    lines.append(f"calls: {calls}")
    lines.append(f"start: {_before(reasoning_form, tag, lines)}calls")
    for number, function in enumerate(functions):
        lines += _function_lines(number, function)
    return "\n".join(lines) + "\n"


def schema_line(grammar: str, line: int) -> int | None:
    """Which function's schema stands in this line (from 1) of a grammar of tool_grammar: its number
    among those that may be called, or None."""
    lines = grammar.splitlines()
    head = lines[line - 1].partition(":")[0] if 1 <= line <= len(lines) else ""
    number = head.removeprefix("arguments_")
    return int(number) if number != head and number.isdecimal() else None


def _function_lines(number: int, function: Function) -> list[str]:
    head = json.dumps(f'{{"name": "{function.name}", "arguments": ')
    return [
        f'call_{number}: {head} arguments_{number} "}}"',
        f"arguments_{number}: %json {json.dumps(enforceable(function.parameters))}",
    ]


def _before(form: ReasoningFormat, tag: Tag, lines: list[str]) -> str:
    """What stands before the calls; adds its rules."""
    if form == "none":
        return ""
    closing = tag(reasoning.CLOSING)
    if closing.startswith("<"):
        lines.append(f"thinking: /(.|\\n)*/ {closing} /\\n{{0,2}}/")
    else:
        pattern = "(.|\\n)*" + reasoning.CLOSING.replace("/", "\\/")
        lines.append(f"thoughts[lazy]: /{pattern}/")
        lines.append("thinking: thoughts /\\n{0,2}/")
    if form == "opened":
        return "thinking "
    return f"({tag(reasoning.OPENING)} thinking)? "
