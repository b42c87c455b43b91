"""Messages with tool calls and tool results, in the shape a chat template takes.

Clients send a call's arguments as JSON text, as they received them; most templates want objects.
Templates that know neither calls nor the role "tool" get both as ordinary text of the assistant
and the user.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import PromptError
from headrace.formats.chat_template import plain_messages


@dataclass(frozen=True, slots=True)
class CallShape:
    """What a template wants. text_arguments: arguments as JSON text. no_content: a message that is
    nothing but calls has null for content, not "". short_ids: ids are 9 letters and digits. single:
    a message holds one call, and its result comes next."""

    text_arguments: bool = False
    no_content: bool = False
    short_ids: bool = False
    single: bool = False


#: In the order in which they are tried.
CALL_SHAPES = tuple(
    CallShape(text, none, short, single)
    for single in (False, True)
    for short in (False, True)
    for text in (False, True)
    for none in (False, True)
)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an assistant message, checked."""

    id: str
    name: str
    arguments: dict[str, Any]

    def to_json(self) -> str:
        """As the generic JSON format writes a call."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


def calls_of(message: Mapping[str, Any], number: int) -> list[Call]:
    """The calls of message `number`. Raises PromptError naming the field."""
    given = message.get("tool_calls")
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise PromptError(f"messages[{number}].tool_calls must be a list.")
    return [_call(one, f"messages[{number}].tool_calls[{i}]") for i, one in enumerate(given)]


def _call(given: object, field: str) -> Call:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(function, Mapping):
        raise PromptError(f"{field} must be an object with id, type and function.")
    name, call_id = function.get("name"), given.get("id", "")
    if not isinstance(name, str) or not name:
        raise PromptError(f"{field}.function.name must be the function's name.")
    if not isinstance(call_id, str):
        raise PromptError(f"{field}.id must be text.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise PromptError(f"{field}.function.arguments must be the JSON text of an object.")
    return Call(call_id, name, arguments)


def shaped(messages: Sequence[Mapping[str, Any]], shape: CallShape) -> list[dict[str, Any]]:
    """Copies of the messages, calls and results in this shape. Raises PromptError."""
    result: list[dict[str, Any]] = []
    for number, message in enumerate(plain_messages(messages, developer=True)):
        copy = dict(message)
        calls = calls_of(message, number)
        copy.pop("tool_calls", None)
        if calls:
            if not copy.get("content"):
                copy["content"] = None if shape.no_content else ""
            copy["tool_calls"] = [_shaped_call(call, shape) for call in calls]
        if isinstance(copy.get("tool_call_id"), str):
            copy["tool_call_id"] = _shaped_id(copy["tool_call_id"], shape)
        result.append(copy)
    return _one_by_one(result) if shape.single else result


def _one_by_one(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each call in a message of its own, followed by its result."""
    result: list[dict[str, Any]] = []
    waiting = list(reversed(messages))
    while waiting:
        message = waiting.pop()
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            result.append(message)
            continue
        answers = []
        while waiting and waiting[-1]["role"] == "tool":
            answers.append(waiting.pop())
        for number, call in enumerate(calls):
            result.append({**message, "tool_calls": [call]})
            if number:
                result[-1]["content"] = message["content"] and ""
            own = [answer for answer in answers if answer.get("tool_call_id") == call["id"]]
            result += own
            answers = [answer for answer in answers if answer not in own]
        result += answers
    return result


def _shaped_call(call: Call, shape: CallShape) -> dict[str, Any]:
    arguments: Any = call.arguments
    if shape.text_arguments:
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {
        "id": _shaped_id(call.id, shape),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _shaped_id(call_id: str, shape: CallShape) -> str:
    if not shape.short_ids or (len(call_id) == 9 and call_id.isalnum()):
        return call_id
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:9]


def folded(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of the messages, calls written out as the assistant's text and results as the user's;
    neighbours that then have the same role become one message. Raises PromptError."""
    result: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for number, message in enumerate(plain_messages(messages, developer=True)):
        calls = calls_of(message, number)
        names.update((call.id, call.name) for call in calls)
        role, text = message["role"], message["content"] or ""
        if calls:
            text = "\n".join(filter(None, (text, calls_text(calls))))
        elif role == "tool":
            name = names.get(str(message.get("tool_call_id"))) or message.get("name") or "function"
            role, text = "user", f"Result of {name}: {text}"
        if result and result[-1]["role"] == role and role in ("user", "assistant"):
            result[-1]["content"] += "\n" + text
        else:
            rest = {k: v for k, v in message.items() if k not in ("tool_calls", "tool_call_id")}
            result.append({**rest, "role": role, "content": text})
    return result


def calls_text(calls: Iterable[Call]) -> str:
    """Calls in the generic JSON format: one object, or a list of several."""
    texts = [call.to_json() for call in calls]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
