"""Tool calls as a model that was taught them writes them: Qwen2.5-Coder 0.5B, by its template."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import jsonschema
import pytest

from headrace.engine.llm import LLM
from headrace.engine.model import open_model
from headrace.engine.params import SamplingParams
from headrace.server.parsing.answer import AnswerFormat
from headrace.server.parsing.message import message_of
from headrace.server.parsing.tool_grammar import tool_grammar
from headrace.server.parsing.tool_request import ToolRequest, read_tools
from headrace.server.parsing.tool_style import tool_style
from headrace.structured.grammar import lark_token
from headrace.structured.spec import StructuredOutputs

pytestmark = pytest.mark.large

SCHEMAS: dict[str, Any] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
    "get_time": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name} of a city", "parameters": schema},
    }
    for name, schema in SCHEMAS.items()
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("qwen2.5-coder-0.5b", max_model_len=2048, max_num_seqs=8) as model:
        yield model


def answers(
    llm: LLM, messages: list[dict[str, Any]], request: ToolRequest, **params: Any
) -> list[dict[str, Any]]:
    """The messages of all samples, read as a server reads them, and read token by token."""
    style = tool_style(llm.model.chat_template())
    assert (style.form, style.native) == ("hermes", True)
    [output] = llm.chat(
        style.messages(messages, request),
        SamplingParams(max_tokens=120, **params),
        tools=style.tools(request),
    )
    form = AnswerFormat(style.form, "none", tuple(f.name for f in request.callable))
    result = []
    for sample in output.outputs:
        reads = []
        for parts in ([sample.text], list(sample.text)):
            count = itertools.count()
            reader = form.parser(partial(lambda count: f"call_{next(count)}", count))
            pieces = [piece for part in parts for piece in reader.push(part)] + reader.finish()
            reads.append(message_of(pieces))
        assert reads[0] == reads[1]
        result.append(reads[0])
    return result


@pytest.mark.parametrize(
    ("question", "name", "city"),
    [
        ("What is the weather in Oslo?", "get_weather", "Oslo"),
        ("Tell me the time in Tokyo, please.", "get_time", "Tokyo"),
    ],
)
def test_the_model_s_own_calls_are_read(llm: LLM, question: str, name: str, city: str) -> None:
    request = read_tools(TOOLS, None, None)
    [answer] = answers(llm, [{"role": "user", "content": question}], request, temperature=0)
    assert answer["content"] is None
    function = answer["tool_calls"][0]["function"]
    assert function["name"] == name
    assert json.loads(function["arguments"])["city"] == city


def test_small_talk_is_content(llm: LLM) -> None:
    request = read_tools(TOOLS, None, None)
    messages = [{"role": "user", "content": "Hello, who are you?"}]
    [answer] = answers(llm, messages, request, temperature=0)
    assert "tool_calls" not in answer
    assert "Qwen" in answer["content"]


def test_results_are_understood(llm: LLM) -> None:
    """The template's own form of calls and results: the answer uses what the tool said."""
    request = read_tools(TOOLS[:1], "none", None)
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    messages = [
        {"role": "user", "content": "What is the weather in Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "hail, -7 degrees"},
        {"role": "user", "content": "Say in words what you found out."},
    ]
    [answer] = answers(llm, messages, request, temperature=0)
    assert "-7 degrees" in answer["content"]


@pytest.mark.parametrize(
    ("alias", "form"),
    [
        ("smollm2-135m", "json"),
        ("gemma3-270m", "json"),
        ("qwen2.5-coder-0.5b", "hermes"),
        ("qwen2.5-coder-1.5b", "hermes"),
    ],
)
def test_every_model_s_own_template_takes_calls(alias: str, form: str) -> None:
    template = open_model(alias).chat_template()
    style, request = tool_style(template), read_tools(TOOLS, None, None)
    assert (style.form, style.native) == (form, form == "hermes")
    calls = [
        {"id": str(i), "type": "function", "function": {"name": "get_time", "arguments": text}}
        for i, text in enumerate(['{"city": "Oslo"}', '{"city": "Rome"}'])
    ]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What time is it there?"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "0", "content": "noon"},
        {"role": "tool", "tool_call_id": "1", "content": "midnight"},
        {"role": "user", "content": "Thanks"},
    ]
    text = template.render(style.messages(messages, request), tools=style.tools(request))
    places = [
        text.rindex(part)
        for part in ("Be brief.", "get_weather", "I look.", "Oslo", "Rome", "midnight", "Thanks")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("choice", ["required", "get_time"])
def test_enforced_calls_are_in_its_own_format(llm: LLM, choice: str) -> None:
    named: Any = {"type": "function", "function": {"name": choice}}
    request = read_tools(TOOLS, choice if choice == "required" else named, False)
    grammar = tool_grammar(request, "hermes", partial(lark_token, llm.tokenizer))
    messages = [{"role": "user", "content": "What is the weather in Oslo?"}]
    outputs = StructuredOutputs(grammar=grammar)
    found = answers(llm, messages, request, n=8, seed=1, structured_outputs=outputs)
    for answer in found:
        assert answer["content"] is None
        [call] = answer["tool_calls"]
        name = call["function"]["name"]
        assert name in SCHEMAS if choice == "required" else name == choice
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[name])
    cities = [json.loads(a["tool_calls"][0]["function"]["arguments"])["city"] for a in found]
    assert cities.count("Oslo") >= 4
