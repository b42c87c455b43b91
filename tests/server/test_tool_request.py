"""tools, tool_choice and parallel_tool_calls: what is accepted, and that each mistake is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UsageError
from headrace.server.parsing.tool_request import Function, ToolRequest, read_tools


def tool(name: Any = "weather", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


NAMED = {"type": "function", "function": {"name": "time"}}


def test_defaults() -> None:
    assert read_tools(None, None, None).choice == "none"
    assert not read_tools(None, "none", True).offered
    request = read_tools([tool(), tool("time")], None, None)
    assert ToolRequest().parallel
    assert (request.choice, request.parallel, request.enforced) == ("auto", True, False)
    assert [f.name for f in request.callable] == ["weather", "time"]
    assert request.tools()[1] == {
        "type": "function",
        "function": {
            "name": "time",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    }


def test_choices() -> None:
    tools = [tool(description="Weather", strict=True), tool("time")]
    assert read_tools(tools, "required", False).enforced
    named = read_tools(tools, NAMED, None)
    assert named.enforced
    assert [f.name for f in named.callable] == ["time"]
    assert len(named.tools()) == 2  # the prompt is the same whatever must be called
    none = read_tools(tools, "none", None)
    assert (none.offered, none.tools(), none.callable) == (False, [], ())
    assert isinstance(named.functions[0], Function)
    assert named.functions[0].strict


def test_schemas_may_be_deep() -> None:
    assert read_tools([tool(parameters=deep(64))], None, None).offered


PARAMETERS = "tools[0].function.parameters"
REFUSED: list[tuple[str, Any, Any, Any]] = [
    ("tools must", "weather", None, None),
    ("tools must", {"type": "function"}, None, None),
    ("tools holds 129", [tool(f"f{i}") for i in range(129)], None, None),
    ("tools[0] must", ["weather"], None, None),
    ("tools[0].type", [{"type": "custom", "custom": {"name": "x"}}], None, None),
    ("tools[0].function must", [{"type": "function", "name": "x"}], None, None),
    ("tools[0].function.name", [tool("")], None, None),
    ("tools[0].function.name", [tool("a b")], None, None),
    ("tools[0].function.name", [tool("naïve")], None, None),
    ("tools[0].function.name", [tool("x\n")], None, None),
    ("tools[0].function.name", [tool("x" * 65)], None, None),
    ("tools[0].function.name", [tool(3)], None, None),
    ("tools[1].function.name", [tool(), tool()], None, None),
    ("tools[0].function.description", [tool(description=3)], None, None),
    ("tools[0].function.strict", [tool(strict="yes")], None, None),
    (f"{PARAMETERS} must", [tool(parameters=[])], None, None),
    (f"{PARAMETERS}.type", [tool(parameters={"type": "string"})], None, None),
    (f"{PARAMETERS}.type", [tool(parameters={"type": ["object", "null"]})], None, None),
    (
        f"{PARAMETERS}.properties.a must",
        [tool(parameters={"properties": {"a": "string"}})],
        None,
        None,
    ),
    (
        f"{PARAMETERS}.properties.a.type",
        [tool(parameters={"properties": {"a": {"type": "str"}}})],
        None,
        None,
    ),
    (
        f"{PARAMETERS}.properties.a.items.enum",
        [tool(parameters={"properties": {"a": {"items": {"enum": []}}}})],
        None,
        None,
    ),
    (f"{PARAMETERS}.properties must", [tool(parameters={"properties": []})], None, None),
    (f"{PARAMETERS}.required", [tool(parameters={"required": "a"})], None, None),
    (f"{PARAMETERS}.anyOf", [tool(parameters={"anyOf": {}})], None, None),
    (f"{PARAMETERS}.$ref", [tool(parameters={"$ref": 1})], None, None),
    (f"{PARAMETERS} has more than 64 levels", [tool(parameters=deep(66))], None, None),
    ("tools has", [tool(description="x" * 600_000)], None, None),
    ("tool_choice needs tools", None, "auto", None),
    ("tool_choice needs tools", [], "required", None),
    ("tool_choice needs tools", None, NAMED, None),
    ("tool_choice must", [tool()], "any", None),
    ("tool_choice must", [tool()], True, None),
    ("tool_choice must", [tool()], {"type": "allowed_tools"}, None),
    ("tool_choice.function.name must", [tool()], {"type": "function"}, None),
    ("tool_choice.function.name 'time' is none of the tools (weather)", [tool()], NAMED, None),
    ("parallel_tool_calls", [tool()], None, 1),
]


@pytest.mark.parametrize(("words", "tools", "choice", "parallel"), REFUSED)
def test_every_mistake_is_refused_by_name(
    words: str, tools: Any, choice: Any, parallel: Any
) -> None:
    with pytest.raises(UsageError) as caught:
        read_tools(tools, choice, parallel)
    assert str(caught.value).startswith(words)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("object"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "function",
                    "name",
                    "parameters",
                    "properties",
                    "items",
                    "anyOf",
                    "$ref",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING)
def test_whatever_comes_is_read_or_refused(tools: Any, schema: Any, choice: Any, one: Any) -> None:
    for given_tools in (tools, [tool(parameters=schema)], [tool(description=one)]):
        message = ""
        try:
            read_tools(given_tools, choice, None)
        except UsageError as error:
            message = str(error)
        assert message == "" or message.startswith("tool")
