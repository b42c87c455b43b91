"""The fields tools, tool_choice and parallel_tool_calls: read, checked, and made one object.

Everything a client can get wrong is refused here with a sentence that names the field. Whether a
schema can be enforced is for the compiler of grammars to say, not for this file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from headrace.errors import UsageError
from headrace.server.parsing.tool_schema import check_schema

MAX_TOOLS = 128
#: All tools together, as JSON. They go into the prompt of every request.
MAX_CHARACTERS = 512 * 1024
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Function:
    """One function the model may call. parameters: JSON schema of an object."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool = False

    def to_tool(self) -> dict[str, Any]:
        """As chat templates expect it."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """functions: all that were offered. choice: whether the model may or must call. named: the one
    function that must be called. parallel: whether one answer may hold several calls."""

    functions: tuple[Function, ...] = ()
    choice: Literal["none", "auto", "required"] = "none"
    named: str | None = None
    parallel: bool = True

    @property
    def offered(self) -> bool:
        """True when the model is to know the functions."""
        return bool(self.functions) and self.choice != "none"

    @property
    def enforced(self) -> bool:
        """True when the answer must be a call."""
        return self.choice == "required"

    @property
    def callable(self) -> tuple[Function, ...]:
        """The functions that may be called."""
        if not self.offered:
            return ()
        return tuple(f for f in self.functions if self.named in (None, f.name))

    def tools(self) -> list[dict[str, Any]]:
        """The offered functions for a chat template."""
        return [function.to_tool() for function in self.functions] if self.offered else []


def read_tools(tools: object, tool_choice: object, parallel_tool_calls: object) -> ToolRequest:
    """The three fields of a request, as JSON values; None where a field is missing. Raises
    UsageError naming the field."""
    if parallel_tool_calls is not None and not isinstance(parallel_tool_calls, bool):
        _refuse("parallel_tool_calls", "must be true or false")
    functions = _read_functions(tools)
    choice, named = _read_choice(tool_choice, functions)
    return ToolRequest(functions, choice, named, parallel_tool_calls is not False)


def _read_functions(tools: object) -> tuple[Function, ...]:
    if tools is None:
        return ()
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        _refuse("tools", "must be a list of functions")
    if len(tools) > MAX_TOOLS:
        _refuse("tools", f"holds {len(tools)} functions; at most {MAX_TOOLS} are allowed")
    functions: dict[str, Function] = {}
    for number, tool in enumerate(tools):
        function = _read_function(tool, f"tools[{number}]")
        if function.name in functions:
            _refuse(f"tools[{number}].function.name", f"{function.name!r} is there twice")
        functions[function.name] = function
    size = sum(len(json.dumps(function.to_tool())) for function in functions.values())
    if size > MAX_CHARACTERS:
        _refuse("tools", f"has {size:,} characters as JSON; at most {MAX_CHARACTERS:,} are allowed")
    return tuple(functions.values())


def _read_function(tool: object, field: str) -> Function:
    if not isinstance(tool, Mapping):
        _refuse(field, "must be an object")
    if tool.get("type") != "function":
        _refuse(f"{field}.type", f'must be "function", not {_short(tool.get("type"))}')
    body = tool.get("function")
    if not isinstance(body, Mapping):
        _refuse(f"{field}.function", "must be an object with name and parameters")
    name, description = body.get("name"), body.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        _refuse(f"{field}.function.name", "must be 1 to 64 letters, digits, _ and -")
    if description is not None and not isinstance(description, str):
        _refuse(f"{field}.function.description", "must be text")
    strict = body.get("strict")
    if strict is not None and not isinstance(strict, bool):
        _refuse(f"{field}.function.strict", "must be true or false")
    parameters = body.get("parameters")
    if parameters is None:
        parameters = _NO_PARAMETERS
    check_schema(parameters, f"{field}.function.parameters")
    return Function(name, description, parameters, bool(strict))


def _read_choice(
    choice: object, functions: tuple[Function, ...]
) -> tuple[Literal["none", "auto", "required"], str | None]:
    if choice is None:
        return ("auto" if functions else "none"), None
    if choice == "none":
        return "none", None
    if not functions:
        _refuse("tool_choice", "needs tools: the request has none")
    if choice == "auto":
        return "auto", None
    if choice == "required":
        return "required", None
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        _refuse(
            "tool_choice",
            'must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}',
        )
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        _refuse("tool_choice.function.name", "must be the name of one of the tools")
    if all(function.name != name for function in functions):
        known = ", ".join(function.name for function in functions[:8])
        more = ", …" if len(functions) > 8 else ""
        _refuse(
            "tool_choice.function.name",
            f"{_short(name)} is none of the tools ({known}{more})",
        )
    return "required", name


def _refuse(field: str, what: str) -> NoReturn:
    raise UsageError(f"{field} {what}.")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
