"""Answers from the prefix cache, over HTTP: the same numbers as computed anew, and who says so.

Rows 1-4, 20 and 21 of the faults that users met elsewhere.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from live_server import LiveServer
from neighbour import used_blocks
from raw_http import RawClient
from waiting import until

pytestmark = pytest.mark.models

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BLOCK = 16


@pytest.fixture(autouse=True)
def empty(smollm2: LiveServer) -> None:
    smollm2.json("/cache/reset", {"pins": True})


def ids(first: int, count: int) -> list[int]:
    return [first, *(100 + (first * 7 + i * 13) % 5000 for i in range(count - 1))]


def cached_tokens(answer: Any) -> int:
    number: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert answer["timings"]["cache_n"] == number
    return number


def test_row_1_equal_prompts_of_one_request(smollm2: LiveServer) -> None:
    body = {"prompt": [ids(1, 300)] * 8, "max_tokens": 32, "temperature": 0, "logprobs": 1}
    answer = smollm2.json(COMPLETIONS, body)
    [anew] = smollm2.json(
        COMPLETIONS, {**body, "prompt": ids(1, 300), "cache_prompt": False}
    )["choices"]  # fmt: skip
    assert cached_tokens(answer) >= 7 * (300 - BLOCK)
    assert [{**choice, "index": 0} for choice in answer["choices"]] == [anew] * 8


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_row_2_a_hit_says_the_same(smollm2: LiveServer, path: str, temperature: int) -> None:
    body: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_tokens": 24, "n": 2}
    if path == CHAT:
        message = {"role": "user", "content": "Tell me of the mill by the river. " * 9}
        body |= {"messages": [message], "logprobs": True, "top_logprobs": 3}
    else:
        body |= {"prompt": ids(2, 90), "logprobs": 3}
    miss, hit = smollm2.json(path, body), smollm2.json(path, body)
    anew = smollm2.json(path, {**body, "cache_prompt": False})
    assert cached_tokens(miss) == cached_tokens(anew) == 0
    assert cached_tokens(hit) == hit["usage"]["prompt_tokens"] - 1
    assert hit["choices"] == miss["choices"] == anew["choices"]
    assert anew["timings"]["cache_note"] == "the request asked that its prompt be computed anew"


def test_row_3_prompt_logprobs_of_what_is_cached(smollm2: LiveServer) -> None:
    body = {"prompt": ids(3, 100), "max_tokens": 1, "temperature": 0}
    asking = {**body, "prompt_logprobs": 2, "echo": True, "logprobs": 2}
    first = smollm2.json(COMPLETIONS, asking)
    assert cached_tokens(smollm2.json(COMPLETIONS, body)) == 99
    second = smollm2.json(COMPLETIONS, asking)
    assert cached_tokens(second) == 0
    assert "prompt logprobs" in second["timings"]["cache_note"]
    logprobs = second["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 101
    assert logprobs["token_logprobs"][0] is None
    assert second["choices"] == first["choices"]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 511, 512, 513])
def test_row_4_echo_of_what_is_cached(smollm2: LiveServer, length: int) -> None:
    body = {"prompt": [ids(4, length)], "max_tokens": 1, "temperature": 0}
    scoring = {**body, "echo": True, "logprobs": 1}
    answers = []
    for _ in range(2):
        answers.append(smollm2.json(COMPLETIONS, scoring)["choices"])
        plain = smollm2.json(COMPLETIONS, body)
        assert (
            cached_tokens(plain) == length - 1
        )  # so it lies there, and the next one must not use it
    [choice] = answers[0]
    lists = choice["logprobs"]
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) == length + 1
    assert lists["token_logprobs"][0] is None
    assert all(value is not None for value in lists["token_logprobs"][1:])
    assert answers[1] == answers[0]


def test_row_20_what_a_cut_stream_had_is_not_lost(smollm2: LiveServer) -> None:
    talk = [{"role": "user", "content": "Count slowly, and tell a tale with every number. " * 4}]
    body = {"messages": talk, "max_tokens": 500, "temperature": 0, "ignore_eos": True}
    said = ""
    with smollm2.http.stream("POST", CHAT, json={**body, "stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                said += event["choices"][0]["delta"].get("content") or ""
                if len(said) > 80:
                    break
    assert smollm2.idle(1.0)
    turn = [*talk, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    first = smollm2.json("/tokenize", {"messages": talk})["count"]
    again = smollm2.json(CHAT, {"messages": turn, "max_tokens": 1})
    assert cached_tokens(again) >= first  # and what it had said, too:
    cut = smollm2.json("/tokenize", {"prompt": said, "add_special_tokens": False})["count"]
    assert cached_tokens(again) >= first + cut - BLOCK


@pytest.mark.parametrize("stream", [True, False])
def test_row_21_who_leaves_holds_nothing(smollm2: LiveServer, stream: bool) -> None:
    body = {"prompt": ids(5, 200), "max_tokens": 700, "ignore_eos": True, "stream": stream}
    client = RawClient(smollm2.url)
    client.post(COMPLETIONS, body)
    if stream:
        assert client.peek(4000).count(b"data: ") >= 5
    else:
        until(lambda: used_blocks(smollm2) >= 13, "the prompt is computed")
    client.socket.close()
    assert smollm2.idle(1.0)
    assert used_blocks(smollm2) == 0
    [pool] = smollm2.json("/cache")["pools"]
    assert pool["held"] == 0
    assert pool["cached"] >= 12  # what was computed stays for others
    assert (
        cached_tokens(smollm2.json(COMPLETIONS, {**body, "stream": False, "max_tokens": 1})) > 190
    )


def test_cache_prompt_false_still_leaves_its_prompt_to_others(smollm2: LiveServer) -> None:
    body = {"prompt": ids(6, 80), "max_tokens": 1}
    for _ in range(2):
        assert cached_tokens(smollm2.json(COMPLETIONS, {**body, "cache_prompt": False})) == 0
    assert cached_tokens(smollm2.json(COMPLETIONS, {**body, "cache_prompt": True})) == 79


def test_vectors_take_no_part(smollm2: LiveServer) -> None:
    smollm2.json(COMPLETIONS, {"prompt": ids(7, 80), "max_tokens": 1})
    before = smollm2.json("/cache")
    body = {"input": [ids(7, 80), ids(8, 80)], "cache_salt": "a", "cache_prompt": True}
    answer = smollm2.post("/v1/embeddings", body)
    assert answer.headers["x-headrace-ignored"] == "cache_salt, cache_prompt"
    after = smollm2.json("/cache")
    assert after["positions"] == before["positions"]
    assert after["hits"] == before["hits"]
