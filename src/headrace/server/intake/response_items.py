"""The items of a Responses request as the messages of a conversation.

    message ─────────────────────▶ {role, content}
    function_call (one or more) ─▶ {role: assistant, tool_calls}
    function_call_output ────────▶ {role: tool, tool_call_id, content}
    reasoning ───────────────────▶ nothing: templates leave out the reasoning of earlier turns

Pure; knows no template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.server.errors import ApiError, invalid

#: A tuple, because a stranger's kind may be a list, which no set can be asked for.
_PARTS = ("input_text", "output_text", "text", "refusal")


def messages_of(
    given: str | Sequence[Mapping[str, Any]], instructions: str | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages, and names of items without effect. Raises ApiError naming the item."""
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}], []
    if not given:
        raise invalid("input is an empty list: there is nothing to answer.", "input")
    ignored: list[str] = []
    for number, item in enumerate(given):
        place = f"input[{number}]"
        match item.get("type", "message"):
            case "message":
                messages.append(_message(item, place))
            case "function_call":
                _add_call(messages, item, place)
            case "function_call_output":
                messages.append(_output(item, place))
            case "reasoning":
                ignored.append(f"{place} (reasoning)")
            case "item_reference":
                raise invalid(f"{place} refers to a stored item, and nothing is stored.", "input")
            case other:
                raise invalid(f"{place}.type {str(other)[:40]!r} is not supported.", "input")
    return messages, ignored


def _message(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        raise invalid(f"{place}.role must be user, assistant, system or developer.", "input")
    return {"role": role, "content": _text(item.get("content"), f"{place}.content")}


def _text(content: object, place: str) -> str:
    """A text, or the texts of its parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise invalid(f"{place} must be text or a list of parts.", "input")
    return "".join(_part(part, f"{place}[{number}]") for number, part in enumerate(content))


def _part(part: object, place: str) -> str:
    if not isinstance(part, Mapping):
        raise invalid(f"{place} must be an object with type and text.", "input")
    kind = part.get("type")
    if kind not in _PARTS:
        raise invalid(f"{place}.type {str(kind)[:40]!r} is not supported; only text is.", "input")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise invalid(f"{place} has no text.", "input")
    return text


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any], place: str) -> None:
    """Calls belong to the assistant's message before them, or make one."""
    values = {name: item.get(name) for name in ("call_id", "name", "arguments")}
    for name, value in values.items():
        if not isinstance(value, str):
            raise invalid(f"{place}.{name} must be text.", "input")
    call = {
        "id": values["call_id"],
        "type": "function",
        "function": {"name": values["name"], "arguments": values["arguments"]},
    }
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _output(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        raise invalid(f"{place}.call_id must be text.", "input")
    content = _text(item.get("output"), f"{place}.output")
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """The flat form of a function as chat's nested one. Raises ApiError for other kinds."""
    if tools is None:
        return None
    nested = []
    for number, tool in enumerate(tools):
        if tool.get("type") != "function":
            kind = str(tool.get("type"))[:40]
            raise _no_such_tool(f"tools[{number}].type {kind!r}", "tools")
        function = {name: value for name, value in tool.items() if name != "type"}
        nested.append({"type": "function", "function": function})
    return nested


def chat_tool_choice(choice: str | Mapping[str, Any] | None) -> object:
    """As chat writes it."""
    if isinstance(choice, Mapping):
        if choice.get("type") != "function":
            kind = str(choice.get("type"))[:40]
            raise _no_such_tool(f"tool_choice.type {kind!r}", "tool_choice")
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _no_such_tool(what: str, field: str) -> ApiError:
    return invalid(f"{what} is not supported; only functions are.", field)
