"""langchain-openai's ChatOpenAI, as an application uses it."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

MODEL = "smollm2-135m"
QUESTION = "Name a river of Europe."


def chat(api: str, **options: object) -> ChatOpenAI:
    return ChatOpenAI(
        model=MODEL, base_url=api, api_key="none", temperature=0, max_retries=0, **options
    )


def test_invoke(api: str) -> None:
    messages = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
    answer = chat(api, max_tokens=16).invoke(messages)
    assert isinstance(answer, AIMessage)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 16
    assert answer.usage_metadata["input_tokens"] > 10
    assert answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.response_metadata["model_name"] == MODEL


def test_stream_joins_to_invoke(api: str) -> None:
    model = chat(api, max_tokens=24, stream_usage=True)
    whole = model.invoke(QUESTION)
    pieces = list(model.stream(QUESTION))
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert joined.content == whole.content
    assert joined.usage_metadata == whole.usage_metadata
    assert joined.response_metadata["finish_reason"] == whole.response_metadata["finish_reason"]
    assert sum(bool(piece.content) for piece in pieces) > 5


def test_asynchronously(api: str) -> None:
    model, questions = chat(api, max_tokens=8), [QUESTION, "And a lake?"]

    async def both() -> tuple[list[str], str]:
        answers = await model.abatch(questions)
        streamed = [piece.content async for piece in model.astream(QUESTION)]
        return [answer.content for answer in answers], "".join(streamed)

    answers, streamed = asyncio.run(both())
    assert answers == [model.invoke(question).content for question in questions]
    assert streamed == answers[0]


class River(BaseModel):
    """A river."""

    name: str = Field(max_length=24)
    continent: Literal["Africa", "Asia", "Europe"]
    length_km: int = Field(ge=1, le=9999)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_with_structured_output(api: str, method: str) -> None:
    model = chat(api, max_tokens=120).with_structured_output(River, method=method)
    assert isinstance(model.invoke(QUESTION), River)


def test_with_structured_output_json_mode(api: str) -> None:
    model = chat(api, max_tokens=200, frequency_penalty=1.0)
    answer = model.with_structured_output(method="json_mode", include_raw=True).invoke(
        f"{QUESTION} Answer as a JSON object."
    )
    assert answer["parsing_error"] is None or (
        answer["raw"].response_metadata["finish_reason"] == "length"
    )


@tool
def weather(city: Literal["Oslo", "Rome"], days: int) -> str:
    """The weather of a city."""
    return f"{city}: rain for {days} days"


def test_bind_tools_and_the_way_back(api: str) -> None:
    model = chat(api, max_tokens=80).bind_tools([weather], tool_choice="required")
    question = HumanMessage("How is the weather in Rome for 3 days?")
    asked = model.invoke([question])
    assert asked.response_metadata["finish_reason"] == "tool_calls"
    assert {call["name"] for call in asked.tool_calls} == {"weather"}
    results = []
    for call in asked.tool_calls:
        assert call["args"]["city"] in ("Oslo", "Rome")
        assert isinstance(call["args"]["days"], int)
        results.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    told = chat(api, max_tokens=16).bind_tools([weather]).invoke([question, asked, *results])
    assert told.usage_metadata["input_tokens"] > asked.usage_metadata["input_tokens"]
    joined = None
    for piece in model.stream([question]):
        joined = piece if joined is None else joined + piece
    assert [(c["name"], c["args"]) for c in joined.tool_calls] == [
        (c["name"], c["args"]) for c in asked.tool_calls
    ]


def test_bind_a_named_tool(api: str) -> None:
    answer = chat(api, max_tokens=80).bind_tools([weather], tool_choice="weather").invoke(QUESTION)
    [call] = answer.tool_calls
    assert call["name"] == "weather"
