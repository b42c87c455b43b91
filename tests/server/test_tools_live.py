"""Tool calls through a real server on SmolLM2, which was never taught any: what the grammar
promises must hold all the same. Clients: the OpenAI SDK and plain HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, Field

from live_server import LiveServer

pytestmark = pytest.mark.models

MODEL = "smollm2-135m"
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome", "New York"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "hours": {"type": "array", "items": {"enum": ["noon", "night"]}, "maxItems": 2},
    },
    "required": ["city", "days"],
}
TIME: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "maxLength": 12}},
    "required": ["zone"],
}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
TOOLS: Any = [
    {"type": "function", "function": {"name": n, "description": n, "parameters": s}}
    for n, s in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}
MESSAGES: Any = [{"role": "user", "content": "How is the weather in Rome this week?"}]


@pytest.fixture(scope="module")
def client(smollm2: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)


def joined(chunks: list[ChatCompletionChunk]) -> list[dict[str, Any]]:
    """The choices of a stream, as a client puts them together; ids left out."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk.choices:
            choice = choices.setdefault(
                part.index, {"content": "", "calls": [], "finish_reason": None}
            )
            choice["content"] += part.delta.content or ""
            for call in part.delta.tool_calls or []:
                if call.index == len(choice["calls"]):
                    assert call.id
                    assert call.type == "function"
                    choice["calls"].append([call.function.name, ""])
                choice["calls"][call.index][1] += call.function.arguments
            if part.finish_reason is not None:
                assert choice["finish_reason"] is None
                choice["finish_reason"] = part.finish_reason
    return [choices[index] for index in sorted(choices)]


def both(client: openai.OpenAI, **options: Any) -> list[dict[str, Any]]:
    """The choices of a request, which must be the same streamed and whole."""
    options = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "max_tokens": 300, **options}
    whole = client.chat.completions.create(**options)
    choices = [
        {
            "content": choice.message.content or "",
            "calls": [
                [call.function.name, call.function.arguments]
                for call in choice.message.tool_calls or []
            ],
            "finish_reason": choice.finish_reason,
        }
        for choice in whole.choices
    ]
    assert joined(list(client.chat.completions.create(**options, stream=True))) == choices
    return choices


def check(choice: dict[str, Any], names: set[str], most: int) -> None:
    """Nothing but calls that can be made."""
    assert choice["content"] == ""
    assert choice["finish_reason"] == "tool_calls"
    assert 1 <= len(choice["calls"]) <= most
    for name, arguments in choice["calls"]:
        assert name in names
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("seed", range(10))
def test_required_and_named_calls_are_always_made(client: openai.OpenAI, seed: int) -> None:
    options = {"seed": seed, "temperature": 1.0}
    [choice] = both(client, tool_choice="required", parallel_tool_calls=False, **options)
    check(choice, set(SCHEMAS), 1)
    [choice] = both(client, tool_choice=NAMED, **options)
    check(choice, {"get_time"}, 1)


def test_several_calls_in_several_samples(client: openai.OpenAI) -> None:
    choices = both(client, tool_choice="required", n=3, seed=5, max_tokens=600)
    assert len(choices) == 3
    for choice in choices:
        check(choice, set(SCHEMAS), 8)
    assert len({json.dumps(choice["calls"]) for choice in choices}) > 1


def test_a_call_cut_by_length_says_so(client: openai.OpenAI) -> None:
    for max_tokens in (1, 5, 20):
        [choice] = both(client, tool_choice="required", seed=1, max_tokens=max_tokens)
        assert choice["finish_reason"] == "length"


def test_answers_without_calls_are_what_they_are_without_a_parser(
    client: openai.OpenAI, smollm2: LiveServer
) -> None:
    """auto and none: the same prompt continued by /v1/completions, which parses nothing."""
    for options in ({}, {"tool_choice": "none"}, {"tool_choice": "auto", "logprobs": True}):
        [choice] = both(client, temperature=0, max_tokens=24, **options)
        asked = TOOLS if options.get("tool_choice") != "none" else None
        prompt = smollm2.json("/apply-template", {"messages": MESSAGES, "tools": asked})["prompt"]
        assert ("get_weather" in prompt) == (asked is not None)
        raw = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=24)
        assert choice == {
            "content": raw.choices[0].text,
            "calls": [],
            "finish_reason": raw.choices[0].finish_reason,
        }


def test_a_call_and_its_result_go_back_into_the_conversation(
    client: openai.OpenAI, smollm2: LiveServer
) -> None:
    first = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required", seed=3
    )
    message = first.choices[0].message
    assert message.content is None
    assert message.tool_calls
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 degrees"}
        for call in message.tool_calls
    ]
    talk = [*MESSAGES, message.model_dump(exclude_none=True), *results]
    answer = client.chat.completions.create(model=MODEL, messages=talk, tools=TOOLS, max_tokens=8)
    assert answer.usage is not None
    assert first.usage is not None
    assert answer.usage.prompt_tokens > first.usage.prompt_tokens
    prompt = smollm2.json("/apply-template", {"messages": talk, "tools": TOOLS})["prompt"]
    assert message.tool_calls[0].function.name in prompt
    assert prompt.count("sunny, 20 degrees") == len(results)


class Trip(BaseModel):
    """Books a trip."""

    city: Literal["Oslo", "Rome"]
    nights: int = Field(ge=1, le=9)
    by_train: bool


def test_the_sdk_s_parse_with_pydantic_tools(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "A trip to Rome for three nights, please."}],
        tools=[openai.pydantic_function_tool(Trip, name="book")],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=2,
    )
    [call] = parsed.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Trip)
    assert parsed.choices[0].finish_reason == "tool_calls"


def test_the_sdk_s_stream_with_pydantic_tools(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "A trip to Rome for three nights, please."}],
        tools=[openai.pydantic_function_tool(Trip, name="book")],
        tool_choice="required",
        parallel_tool_calls=False,
        seed=2,
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    [call] = final.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Trip)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "function"}]}, "tools", "tools[0].function"),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "there twice"),
    ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "required"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "tool_choice",
        "'x' is none of the tools",
    ),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    (
        {
            "tools": TOOLS,
            "tool_choice": "required",
            "response_format": {"type": "json_object"},
        },
        "tool_choice",
        "only one of them",
    ),
    (
        {
            "tools": [
                *TOOLS,
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "parameters": {"properties": {"a": {"pattern": "(?=a)b"}}},
                    },
                },
            ],
            "tool_choice": "required",
        },
        "tools",
        "tools[2].function.parameters cannot be enforced: regex parse error",
    ),
    (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]},
        "",
        "messages[0].tool_calls[0]",
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_mistakes_are_named(
    smollm2: LiveServer, fields: dict[str, Any], param: str, words: str
) -> None:
    error = smollm2.refusal("/v1/chat/completions", {"messages": MESSAGES, **fields})
    assert words in error["message"]
    assert (error["param"] or "") == param


def test_the_page_s_example_runs(smollm2: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "http://127.0.0.1:8000" in code
    exec(code.replace("http://127.0.0.1:8000", smollm2.url), {})
    assert json.loads(capsys.readouterr().out)["city"] in ("Oslo", "Rome")


def test_logprobs_go_with_every_token_of_a_call(client: openai.OpenAI) -> None:
    options: Any = {
        "model": MODEL, "messages": MESSAGES, "tools": TOOLS, "tool_choice": NAMED, "seed": 4,
        "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    whole = client.chat.completions.create(**options).choices[0]
    assert whole.logprobs
    told = [
        entry
        for chunk in client.chat.completions.create(**options, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content or []
    ]
    assert told == whole.logprobs.content
    text = "".join(entry.token for entry in told)
    assert json.loads(text[: text.rindex("}") + 1])["name"] == "get_time"


OPENED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n"
)


def test_reasoning_that_the_prompt_opens(smollm2: LiveServer) -> None:
    """SmolLM2 never closes it: all is reasoning, streamed as whole, and counted."""
    body = {
        "messages": MESSAGES, "chat_template": OPENED, "max_tokens": 12, "temperature": 0,
        "stop": ["</never>"], "cache_prompt": False,
    }  # fmt: skip
    whole = smollm2.json("/v1/chat/completions", body)
    message = whole["choices"][0]["message"]
    assert message["content"] == ""
    assert message["reasoning_content"]
    usage = whole["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"]
    stream = smollm2.post(
        "/v1/chat/completions",
        {**body, "stream": True, "stream_options": {"include_usage": True}},
    )
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line[:7] == "data: {"]
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    joined_text = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert joined_text == message["reasoning_content"]
    assert events[-1]["usage"] == usage
    raw = smollm2.json("/v1/chat/completions", {**body, "response_format": {"type": "json_object"}})
    assert raw["choices"][0]["message"]["content"].startswith("{")
