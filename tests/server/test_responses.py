"""/v1/responses through the OpenAI SDK, and its event sequence as it goes over the wire."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseOutputItem, ResponseStreamEvent
from pydantic import BaseModel, Field, TypeAdapter

from headrace.server.render.response_items import OutputItems
from live_server import LiveServer

pytestmark = pytest.mark.models
MODEL = "smollm2-135m"
#: The SDK builds its objects without checking them; these do check.
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)


@pytest.fixture(scope="module")
def client(smollm2: LiveServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", max_retries=0)


def chat(server: LiveServer, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """The same through chat completions."""
    body = {"messages": messages, "temperature": 0, **fields}
    answer: dict[str, Any] = server.json("/v1/chat/completions", body)
    return answer


def test_a_response_is_what_chat_answers(smollm2: LiveServer, client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input="Name a colour.",
        max_output_tokens=24,
        temperature=0,
        metadata={"a": "b"},
    )
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a colour."},
    ]
    same = chat(smollm2, messages, max_tokens=24)
    choice = same["choices"][0]
    assert answer.output_text == choice["message"]["content"]
    assert answer.status == ("completed" if choice["finish_reason"] == "stop" else "incomplete")
    assert answer.usage is not None
    assert answer.usage.input_tokens == same["usage"]["prompt_tokens"]
    assert answer.usage.output_tokens == same["usage"]["completion_tokens"]
    assert answer.id.startswith("resp_")
    assert (answer.instructions, answer.metadata) == ("Be brief.", {"a": "b"})
    assert answer.model_extra is not None
    assert answer.model_extra["store"] is False
    assert answer.model_extra["timings"]["predicted_n"] == answer.usage.output_tokens


def test_items_are_the_turns_of_the_conversation(
    smollm2: LiveServer, client: openai.OpenAI
) -> None:
    first = client.responses.create(
        model=MODEL, input="Say hello.", max_output_tokens=12, temperature=0
    )
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Say hello."}]},
        *[item.model_dump(exclude_none=True) for item in first.output],
        {"type": "message", "role": "user", "content": "Again."},
    ]
    second = client.responses.create(model=MODEL, input=turns, max_output_tokens=12, temperature=0)
    messages = [
        {"role": "user", "content": "Say hello."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Again."},
    ]
    same = chat(smollm2, messages, max_tokens=12)
    assert second.output_text == same["choices"][0]["message"]["content"]
    assert second.usage is not None
    assert second.usage.input_tokens == same["usage"]["prompt_tokens"]


def events_in(text: str) -> list[dict[str, Any]]:
    """The events of a stream; each names its own type, is one the SDK knows, and they are numbered
    without a gap."""
    events = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":"):
            kind, data = block.split("\n")
            events.append(json.loads(data.removeprefix("data: ")))
            assert kind == f"event: {events[-1]['type']}"
            EVENT.validate_python(events[-1])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def events_of(server: LiveServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.post("/v1/responses", {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    return events_in(answer.text)


def test_items_of_every_kind_in_turn() -> None:
    """What small models do not write by themselves: reasoning, text, two calls."""
    items = OutputItems()
    stream = b"".join([
        items.reasoning("Hm"), items.reasoning("m."), items.text("Let me "), items.text("see."),
        items.call("call_1", "f"), items.arguments('{"a"'), items.arguments(": 1}"),
        items.call("call_2", "g"), items.arguments("{}"), items.finish(complete=False),
    ])  # fmt: skip
    events = events_in(stream.decode())
    for item in items.done:
        ITEM.validate_python(item)
    told = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert told == items.done
    kinds = [(item["type"], item["status"]) for item in items.done]
    assert kinds == [
        ("reasoning", "completed"),
        ("message", "completed"),
        ("function_call", "completed"),
        ("function_call", "incomplete"),
    ]
    assert items.done[0]["content"][0]["text"] == "Hmm."
    assert items.done[1]["content"][0]["text"] == "Let me see."
    assert [items.done[i]["arguments"] for i in (2, 3)] == ['{"a": 1}', "{}"]
    for event in events:
        item = items.done[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]


def test_an_empty_answer_is_an_empty_message() -> None:
    items = OutputItems()
    events_in(items.finish(complete=True).decode())
    assert [item["content"][0]["text"] for item in items.done] == [""]


@pytest.mark.parametrize(("limit", "end"), [(12, "incomplete"), (400, "completed")])
def test_the_event_sequence(smollm2: LiveServer, limit: int, end: str) -> None:
    body = {"input": "Say hello.", "max_output_tokens": limit, "temperature": 0, "seed": 1}
    whole = smollm2.json("/v1/responses", body)
    TypeAdapter(Response).validate_python(whole)
    events = events_of(smollm2, body)
    kinds = [event["type"] for event in events]
    head = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    tail = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{end}",
    ]
    assert kinds[:4] == head
    assert kinds[-4:] == tail
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    text = "".join(event["delta"] for event in events[4:-4])
    assert text == events[-4]["text"] == whole["output"][0]["content"][0]["text"]
    assert whole["status"] == end
    details = {"reason": "max_output_tokens"} if end == "incomplete" else None
    assert whole["incomplete_details"] == events[-1]["response"]["incomplete_details"] == details
    volatile = ("id", "created_at", "completed_at", "timings", "output")
    final = {k: v for k, v in events[-1]["response"].items() if k not in volatile}
    assert final == {k: v for k, v in whole.items() if k not in volatile}
    item = events[-1]["response"]["output"][0]
    assert item == events[-2]["item"]
    assert {k: v for k, v in item.items() if k != "id"} == {
        k: v for k, v in whole["output"][0].items() if k != "id"
    }
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert {event["item_id"] for event in events[3:-2]} == {item["id"]}


def test_the_sdks_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(
        model=MODEL, input="Say hello.", max_output_tokens=400, temperature=0
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text != ""
    assert final.status == "completed"


class Pet(BaseModel):
    name: str = Field(max_length=10)
    kind: Literal["cat", "dog"]


def test_a_schema_is_parsed_by_the_sdk(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model=MODEL, input="Describe a pet as JSON.", text_format=Pet, max_output_tokens=100
    )
    assert answer.output_parsed is not None
    assert answer.output_parsed.kind in ("cat", "dog")
    with client.responses.stream(
        model=MODEL, input="Describe a pet.", text_format=Pet, max_output_tokens=100
    ) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Pet)


def test_logprobs(smollm2: LiveServer, client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="Say hello.",
        max_output_tokens=6,
        temperature=0,
        top_logprobs=2,
        include=["message.output_text.logprobs"],
    )
    part = answer.output[0].content[0]  # type: ignore[union-attr, index]
    assert len(part.logprobs) == 6  # type: ignore[union-attr, arg-type]
    assert "".join(entry.token for entry in part.logprobs) == part.text  # type: ignore[union-attr]
    events = events_of(
        smollm2,
        {"input": "Say hello.", "max_output_tokens": 6, "temperature": 0, "top_logprobs": 2},
    )
    told = [entry for event in events if event["type"] == "response.output_text.delta"
            for entry in event["logprobs"]]  # fmt: skip
    assert told == [entry.model_dump() for entry in part.logprobs]  # type: ignore[union-attr]


TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 10}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def test_a_function_is_called_and_its_output_answered(
    smollm2: LiveServer, client: openai.OpenAI
) -> None:
    answer = client.responses.create(
        model=MODEL,
        input="How is the weather in Rome?",
        tools=[TOOL],  # type: ignore[list-item]
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=200,
        temperature=0,
    )
    [call] = answer.output
    assert call.type == "function_call"
    assert call.name == "get_weather"
    assert list(json.loads(call.arguments)) == ["city"]
    turns: list[Any] = [
        {"role": "user", "content": "How is the weather in Rome?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
    ]
    final = client.responses.create(
        model=MODEL,
        input=turns,
        tools=[TOOL],
        max_output_tokens=8,  # type: ignore[list-item]
    )
    assert final.output[0].type in ("message", "function_call")
    body = {
        "input": "How is the weather in Rome?",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "get_weather"},
        "parallel_tool_calls": False,
        "max_output_tokens": 200,
        "temperature": 0,
    }
    events = events_of(smollm2, body)
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.done" in kinds
    assert "response.content_part.added" not in kinds
    deltas = [e["delta"] for e in events if e["type"].endswith("arguments.delta")]
    assert "".join(deltas) == call.arguments
    with client.responses.stream(
        model=MODEL, input="Weather in Rome?", tools=[TOOL], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=200,
    ) as stream:  # type: ignore[call-overload]  # fmt: skip
        item = stream.get_final_response().output[0]
    assert item.parsed_arguments.keys() == {"city"}


def test_refusals(smollm2: LiveServer) -> None:
    for body, param in (
        ({"input": "a", "store": True}, "store"),
        ({"input": "a", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "background": True}, "background"),
        ({"input": "a", "truncation": "auto"}, "truncation"),
        ({"input": "a", "n": 2}, "n"),
        ({"input": "a", "text": {"format": {"type": "json_schema", "name": "x"}}}, "text"),
        ({"input": "a", "text": {"verbosity": "low"}}, "text"),
        ({"input": "a", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "a", "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": [], "text": "a"}]}]}, "input"),
        ({"input": [{"type": {}}]}, "input"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "a"}]}, "input"),
        ({"input": 3}, "input"),
        ({}, "input"),
        ({"input": "a", "max_output_tokens": -1}, "max_output_tokens"),
    ):
        assert smollm2.refusal("/v1/responses", body)["param"] == param, body


def test_what_has_no_effect_is_named(smollm2: LiveServer) -> None:
    answer = smollm2.post("/v1/responses", {
        "input": [{"type": "reasoning", "summary": []}, {"role": "user", "content": "Hi"}],
        "include": ["reasoning.encrypted_content"], "store": False, "truncation": "disabled",
        "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 2, "user": "me",
    })  # fmt: skip
    assert answer.status_code == 200, answer.text
    ignored = answer.headers["x-headrace-ignored"]
    for name in ("input[0]", "include", "reasoning.summary", "user"):
        assert name in ignored
