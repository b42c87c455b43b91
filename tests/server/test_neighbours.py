"""A seeded request answers the same bits alone and amid 31 neighbours.

The neighbours differ in prompt, length, sampling, guesses and manners: some stream, some leave in
the middle, some come late. The request under test joins while they run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from live_server import LiveServer, strict_json

pytestmark = pytest.mark.models

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NUM_NEIGHBOURS = 31
LONG = "The mill stands by the river and the river turns the mill. " * 45

TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "Tell me of a mill."}],
                    "logprobs": True, "top_logprobs": 4, "max_tokens": 48}),
    "samples with penalties": (COMPLETIONS, {
        "prompt": "Once", "n": 3, "logprobs": 2, "max_tokens": 32, "repetition_penalty": 1.3,
        "presence_penalty": 0.5, "top_k": 50, "top_p": 0.9, "stop": ["\n\n"]}),
    "a long prompt in chunks": (COMPLETIONS, {
        "prompt": LONG, "logprobs": 3, "echo": True, "max_tokens": 16}),
    "guesses": (COMPLETIONS, {
        "prompt": "one two three four, one two three four, one two", "logprobs": 2, "n": 2,
        "max_tokens": 40, "speculative": {"method": "ngram", "num_draft_tokens": 4}}),
    "a schema": (CHAT, {
        "messages": [{"role": "user", "content": "A mill as JSON."}], "logprobs": True,
        "max_tokens": 48, "response_format": {"type": "json_schema", "json_schema": {
            "name": "mill", "schema": {"type": "object", "properties": {
                "name": {"type": "string", "maxLength": 30}, "wheels": {"type": "integer"}},
                "required": ["name", "wheels"], "additionalProperties": False}}}}),
}  # fmt: skip


async def ask(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return strict_json(answer.content)


async def ask_streamed(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Any:
    """The same through a stream: per choice what it says, token by token."""
    answer = await http.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
    events = [strict_json(line) for line in lines if line.startswith("{")]
    choices: dict[int, list[Any]] = {}
    for event in events:
        for part in event["choices"]:
            choices.setdefault(part["index"], []).append(part)
    return choices, events[-1]["seed"]


Asking = Callable[[httpx.AsyncClient, str, dict[str, Any]], Awaitable[Any]]


async def neighbour(http: httpx.AsyncClient, number: int) -> None:
    """One of them, by its number."""
    text = f"{number}: " + "Count the wheels of the mill. " * (number * 3 % 29)
    body: dict[str, Any] = {
        "prompt": text, "max_tokens": 20 + number * 5 % 60, "ignore_eos": True,
        "temperature": number % 3 / 2, "n": 1 + (number % 8 == 0), "logprobs": number % 4 or None,
        "speculative": [None, "ngram", {"num_draft_tokens": 2}, {"acceptance": "rejection"}][
            number % 4
        ],
    }  # fmt: skip
    await asyncio.sleep(number % 5 * 0.01)
    if number % 3 == 0:
        await ask(http, COMPLETIONS, body)
        return
    async with http.stream("POST", COMPLETIONS, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        num_lines = 0
        async for _ in answer.aiter_lines():
            num_lines += 1
            if number % 3 == 1 and num_lines > number:
                return  # leaves without a word


async def amid_neighbours(
    url: str, path: str, body: dict[str, Any], asking: Asking = ask
) -> tuple[Any, int]:
    """The answer, and how many neighbours were still there when it came."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        others = [asyncio.create_task(neighbour(http, n)) for n in range(NUM_NEIGHBOURS)]
        await asyncio.sleep(0.03)
        answer = await asking(http, path, body)
        num_left = sum(not other.done() for other in others)
        await asyncio.gather(*others)
    return answer, num_left


def comparable(answer: Any) -> Any:
    """What must not change: choices with texts, token ids and logprobs, counts and the seed."""
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return answer["choices"], usage, answer["seed"]


@pytest.mark.parametrize("name", TARGETS)
def test_alone_and_amid_31_neighbours(smollm2: LiveServer, name: str) -> None:
    path, fields = TARGETS[name]
    body = {**fields, "temperature": 1.0, "seed": 20261129, "return_token_ids": True}
    alone = smollm2.json(path, body)
    crowded, num_left = asyncio.run(amid_neighbours(smollm2.url, path, body))
    assert num_left > 0, "the neighbours had gone before the answer came"
    assert comparable(crowded) == comparable(alone)
    assert smollm2.idle(2.0)


def test_a_stream_alone_and_amid_31_neighbours(smollm2: LiveServer) -> None:
    path, fields = TARGETS["chat"]
    body = {**fields, "temperature": 1.0, "seed": 20261129, "return_token_ids": True}

    async def alone() -> Any:
        async with httpx.AsyncClient(base_url=smollm2.url, timeout=120) as http:
            return await ask_streamed(http, path, body)

    want = asyncio.run(alone())
    got, num_left = asyncio.run(amid_neighbours(smollm2.url, path, body, ask_streamed))
    assert num_left > 0, "the neighbours had gone before the answer came"
    assert got == want
