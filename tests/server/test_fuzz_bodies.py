"""Hostile requests by the thousand: each is refused or answered, and the server stays as it was.

HEADRACE_FUZZ_CASES and HEADRACE_FUZZ_SEED choose more or others; `make test-abuse` runs 20,000.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from hostile import Attack, Case
from live_server import LiveServer, serving, strict_json
from neighbour import Neighbour, used_blocks
from raw_http import Answer, RawClient

pytestmark = pytest.mark.models
NUM_CASES = int(os.environ.get("HEADRACE_FUZZ_CASES", "1000"))
SEED = int(os.environ.get("HEADRACE_FUZZ_SEED", "4"))
NUM_THREADS = 4
#: Seconds in which any request here must be answered; most take milliseconds.
ANSWER_S = 60.0

USER = {"role": "user", "content": "Say hi"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
    },
}
BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": [USER], "max_tokens": 1},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "a"}]}, USER],
         "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
        {"messages": [USER], "max_tokens": 2, "n": 2, "logprobs": True, "top_logprobs": 2},
        {"messages": [USER], "tools": [TOOL], "tool_choice": "auto", "max_tokens": 1},
        {"messages": [USER], "response_format": {"type": "json_object"}, "max_tokens": 2},
        {"messages": [USER], "max_tokens": 4, "cache_salt": "s", "cache_prompt": False,
         "speculative": {"method": "ngram", "num_draft_tokens": 2, "acceptance": "coupled"}},
    ],
    "/v1/completions": [
        {"prompt": "One, two", "max_tokens": 1},
        {"prompt": [1, 2, 3], "max_tokens": 2, "stream": True},
        {"prompt": [[1, 2], [3]], "max_tokens": 1, "echo": True, "logprobs": 1},
        {"prompt": ["a", "b"], "max_tokens": 2, "logit_bias": {"5": 2.0}, "stop": ["x"]},
        {"prompt": "a", "max_tokens": 2, "stop_token_ids": [5], "allowed_token_ids": [7, 8]},
        {"prompt": "a", "max_tokens": 2, "structured_outputs": {"regex": "[a-z]{2}"}},
        {"prompt": "a b a b a b a", "max_tokens": 6, "speculative": "ngram", "stream": True},
    ],
    "/v1/responses": [
        {"input": "Say hi", "max_output_tokens": 1},
        {"input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "assistant",
             "content": [{"type": "output_text", "text": "b", "annotations": []}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
            {"type": "reasoning", "summary": []}],
         "instructions": "i", "max_output_tokens": 2, "top_logprobs": 2,
         "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
         "tool_choice": "auto", "reasoning": {"effort": "low"}},
        {"input": "a", "max_output_tokens": 2, "stream": True, "text": {"format": {
            "type": "json_schema", "name": "n", "schema": {"enum": ["b", 1]}}}},
    ],
    "/v1/embeddings": [{"input": "a"}, {"input": [[1, 2], [3]], "pooling": "last"}],
    "/tokenize": [{"prompt": "a"}, {"messages": [USER]}],
    "/detokenize": [{"tokens": [1, 2]}],
    "/apply-template": [{"messages": [USER]}],
    "/cache/pin": [{"prompt": "a", "ttl": 5}, {"tokens": [1, 2], "cache_salt": "s", "ttl": 0.1},
                   {"messages": [USER], "ttl": 1}],
    "/cache/release": [{"id": "pin-0"}],
    "/cache/save": [{"model": "smollm2-135m"}],
    "/cache/reset": [{"pins": False}, {"pins": True}],
    "/reset_prefix_cache": [{"pins": False}],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    options = ("--max-model-len", "256", "--request-timeout", "20", "--trust-request-chat-template")
    with serving("smollm2-135m", *options) as running:
        yield running


def test_hostile_requests_change_nothing(server: LiveServer) -> None:
    document = server.json("/openapi.json")
    posts = {path for path, item in document["paths"].items() if "post" in item}
    assert set(BODIES) == posts, "a route without seeds"
    baseline = used_blocks(server)
    process = psutil.Process(server.process.pid)
    statuses: Counter[int] = Counter()
    slowest: list[tuple[float, str]] = []

    def attack(number: int) -> None:
        cases = Attack(document, BODIES, seed=SEED * 1000 + number)
        sender = Sender(server.url)
        for index in range(NUM_CASES // NUM_THREADS // 2):
            case = next(cases)
            began = time.monotonic()
            try:
                answer = sender.send(case)
                check(case, answer)
            except Exception as error:
                raise AssertionError(
                    f"seed {SEED * 1000 + number}, case {index}: {case.name}: "
                    f"{error}\n{case.data[:2000]!r}"
                ) from error
            statuses[answer.status] += 1
            slowest.append((time.monotonic() - began, case.name))

    with Neighbour(server), ThreadPoolExecutor(NUM_THREADS) as pool:
        first = list(pool.map(attack, range(NUM_THREADS)))  # memory grows to its level
        level = process.memory_info().rss
        first += pool.map(attack, range(NUM_THREADS, 2 * NUM_THREADS))
    slowest.sort()
    print(
        f"\nseed {SEED}: {sum(statuses.values())} cases, statuses {dict(sorted(statuses.items()))}"
        f", slowest {slowest[-3:]}, "
        f"memory +{(process.memory_info().rss - level) / 2**20:.0f} MB in the second half"
    )
    assert server.healthy()
    assert server.idle()
    server.json("/cache/reset", {"pins": True})
    assert used_blocks(server) == baseline
    assert process.memory_info().rss - level < 200 << 20
    assert "Traceback" not in server.log()


class Sender:
    """Sends cases over one connection while it lasts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: RawClient | None = None

    def send(self, case: Case) -> Answer:
        if not case.whole:
            with RawClient(self._url, timeout_s=1.0) as client:
                return self._on(client, case)
        if self._client is None:
            self._client = RawClient(self._url, timeout_s=ANSWER_S)
        answer = self._on(self._client, case)
        if answer.status == 0 or answer.headers.get("connection") == "close":
            self._client.socket.close()
            self._client = None
        return answer

    def _on(self, client: RawClient, case: Case) -> Answer:
        try:
            client.send(case.data)
            return client.answer(case.method)
        except ConnectionError:
            return Answer(0, {}, b"")
        except TimeoutError:
            if case.whole:
                raise
            return Answer(0, {}, b"")  # it waits for the rest of the body


def check(case: Case, answer: Answer) -> None:
    """A good answer, or a refusal in the right form."""
    if answer.status == 0:
        assert not case.whole, "no answer"
        return
    assert 200 <= answer.status < 500, answer.body[:500]
    if case.method == "HEAD":
        return
    kind = answer.headers["content-type"].partition(";")[0]
    if answer.status >= 400:
        error = strict_json(answer.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and error["message"]  # noqa: PT018
        assert len(error["message"]) < 2000
        assert "Traceback" not in error["message"]
    elif kind == "application/json":
        strict_json(answer.body)
    elif kind == "text/event-stream":
        check_events(answer.body)
    else:
        assert kind == "text/plain"


def check_events(body: bytes) -> None:
    events = [line for line in body.decode("utf-8").split("\n\n") if line and line[0] != ":"]
    data = [re.sub(r"^event: [\w.]+\n", "", event).removeprefix("data: ") for event in events]
    values = [strict_json(line) for line in data if line != "[DONE]"]
    failed = [value["error"] for value in values if value.get("error")]
    for error in failed:
        assert error["type"] != "server_error", error
    assert failed or data[-1] == "[DONE]" or values[-1]["type"].startswith("response.")
