"""Messages and deltas: what a client joins from the stream is the whole answer's message."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.parsing.answer import AnswerFormat
from headrace.server.parsing.message import delta_of, message_of
from headrace.server.parsing.pieces import Piece

FORM = AnswerFormat("hermes", "tagged", ("weather", "time"))
TEXT = (
    "<think>\nTwo calls.\n</think>\nLet me look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)


def parts(text: str, cuts: list[int]) -> list[list[Piece]]:
    count = itertools.count()
    reader, pushed, at = FORM.parser(lambda: f"call_{next(count)}"), [], 0
    for length in cuts:
        pushed.append(reader.push(text[at : at + length]))
        at += length
    return [*pushed, reader.push(text[at:]), reader.finish()]


def client_join(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client of the API reads a stream: strings are appended, calls are found by index."""
    result: dict[str, Any] = {"role": "assistant", "content": None}
    for one in deltas:
        for name in ("content", "reasoning_content"):
            if name in one:
                result[name] = (result.get(name) or "") + one[name]
        for call in one.get("tool_calls", ()):
            calls = result.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "type": call["type"], "function": {"name": ""}})
                calls[-1]["function"] = {"name": call["function"]["name"], "arguments": ""}
            calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return result


def test_the_message_of_a_whole_answer() -> None:
    [pieces, end] = parts(TEXT, [])
    assert message_of(pieces + end) == {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "Two calls.",
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
            },
            {"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}},
        ],
    }


def test_content_is_null_only_beside_calls() -> None:
    [pieces, _] = parts(TEXT[TEXT.index("<tool_call>") :], [])
    assert message_of(pieces)["content"] is None
    assert message_of([]) == {"role": "assistant", "content": ""}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=30))
def test_deltas_joined_are_the_message(cuts: list[int]) -> None:
    pieces = parts(TEXT, cuts)
    deltas = [delta_of(part) for part in pieces if part]
    assert client_join(deltas) == message_of([piece for part in pieces for piece in part])
    assert delta_of([]) == {}
