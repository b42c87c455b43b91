"""Pieces as OpenAI's fields: the message of a whole answer, and the deltas of a stream.

Deltas joined the way clients join them equal the message. Plain dicts, ready for JSON; no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace.server.parsing.pieces import Content, Piece, Reasoning, ToolCallStart


def message_of(pieces: Iterable[Piece]) -> dict[str, Any]:
    """The `message` of a whole answer. content: null when the answer is nothing but calls;
    reasoning_content and tool_calls only where there are some."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    arguments: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, Content):
            content.append(piece.text)
        elif isinstance(piece, Reasoning):
            reasoning.append(piece.text)
        elif isinstance(piece, ToolCallStart):
            calls.append({"id": piece.id, "type": "function", "function": {"name": piece.name}})
            arguments.append([])
        else:
            arguments[piece.index].append(piece.fragment)
    text = "".join(content)
    result: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None}
    if reasoning:
        result["reasoning_content"] = "".join(reasoning)
    if calls:
        for call, fragments in zip(calls, arguments, strict=True):
            call["function"]["arguments"] = "".join(fragments)
        result["tool_calls"] = calls
    return result


def delta_of(pieces: Sequence[Piece]) -> dict[str, Any]:
    """One stream `delta` with all of these pieces, in the order in which clients join them. Empty
    for no pieces."""
    result: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if isinstance(piece, Content):
            result["content"] = result.get("content", "") + piece.text
        elif isinstance(piece, Reasoning):
            result["reasoning_content"] = result.get("reasoning_content", "") + piece.text
        elif isinstance(piece, ToolCallStart):
            calls.append(
                {
                    "index": piece.index,
                    "id": piece.id,
                    "type": "function",
                    "function": {"name": piece.name, "arguments": ""},
                }
            )
        elif calls and calls[-1]["index"] == piece.index:
            calls[-1]["function"]["arguments"] += piece.fragment
        else:
            calls.append({"index": piece.index, "function": {"arguments": piece.fragment}})
    if calls:
        result["tool_calls"] = calls
    return result
