"""GET /cache, POST /cache/pin, /cache/release, /cache/reset, over a KV cache of a few blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from live_server import LiveServer, serving
from neighbour import used_blocks
from raw_http import RawClient, request
from waiting import until

pytestmark = pytest.mark.models

COMPLETIONS = "/v1/completions"
#: 5 MB of 368,640-byte blocks of SmolLM2 = 54 blocks of 16 positions.
BUDGET = ("--kv-cache-memory", "19MiB", "--max-model-len", "512", "--max-num-batched-tokens", "64")
NUM_BLOCKS = 54


@pytest.fixture(scope="module")
def small() -> Iterator[LiveServer]:
    with serving("smollm2-135m", *BUDGET) as server:
        assert server.json("/cache")["nodes"] == 0  # what warmed it up is no request's
        yield server


@pytest.fixture(autouse=True)
def empty(small: LiveServer) -> None:
    small.json("/cache/reset", {"pins": True})


def ids(first: int, count: int) -> list[int]:
    """Prompts of different first ids have nothing in common."""
    return [first, *(100 + (first * 7 + i * 13) % 5000 for i in range(count - 1))]


def cached(server: LiveServer, prompt: list[int], **fields: Any) -> int:
    body = {"prompt": prompt, "max_tokens": 1, **fields}
    usage = server.json(COMPLETIONS, body)["usage"]
    number: int = usage["prompt_tokens_details"]["cached_tokens"]
    return number


def flood(server: LiveServer) -> None:
    """Other prompts, twice as many as the cache holds."""
    for first in range(1000, 1004):
        cached(server, ids(first, 480))


def pin(server: LiveServer, prompt: list[int], **fields: Any) -> Any:
    return server.json("/cache/pin", {"tokens": prompt, **fields})


def test_a_pin_is_computed_kept_and_released(small: LiveServer) -> None:
    prompt = ids(1, 200)
    body = {"prompt": [*prompt, 7], "max_tokens": 8, "temperature": 0, "logprobs": 1}
    cold = small.json(COMPLETIONS, {**body, "cache_prompt": False})["choices"]
    small.json("/cache/reset", {})
    answer = pin(small, prompt)
    assert answer["object"] == "cache.pin"
    assert answer["tokens"] == answer["usage"]["prompt_tokens"] == 200
    assert answer["expires_at"] is None
    flood(small)
    held = small.json(COMPLETIONS, body)
    assert held["usage"]["prompt_tokens_details"]["cached_tokens"] == 200
    assert held["choices"] == cold
    assert used_blocks(small) == 13  # of the pin
    told = small.json("/cache")
    assert told["pinned"] | {"bytes": 0} == {"pins": 1, "positions": 200, "bytes": 0, "broken": 0}
    assert told["pinned"]["bytes"] == 13 * told["pools"][0]["block_bytes"]
    assert told["evicted_positions"] > 0
    assert small.json("/cache/release", {"id": answer["id"]}) == {
        "id": answer["id"], "released": True,
    }  # fmt: skip
    assert used_blocks(small) == 0
    assert cached(small, prompt) == 199  # like anything else that is cached …
    flood(small)
    assert cached(small, prompt) == 0  # … until its room is needed


def test_a_second_pin_of_the_same_is_free_and_lives_by_itself(small: LiveServer) -> None:
    prompt = ids(2, 100)
    one, two = pin(small, prompt), pin(small, prompt, ttl=3600)
    assert one["id"] != two["id"]
    assert two["usage"]["prompt_tokens_details"]["cached_tokens"] == 99
    assert used_blocks(small) == 7
    small.json("/cache/release", {"id": one["id"]})
    assert used_blocks(small) == 7
    error = small.refusal("/cache/release", {"id": one["id"]}, 404)
    assert error["param"] == "id"
    [left] = small.json("/cache")["pins"]
    assert left == {"id": two["id"], "tokens": 100, "expires_at": pytest.approx(two["expires_at"])}


def test_a_pin_ends_by_itself(small: LiveServer) -> None:
    for ttl_s in (0.3, 3, 30):  # long enough to be looked at, on a slow machine too
        before = time.time()
        answer = pin(small, ids(3, 40), ttl=ttl_s)
        assert before + ttl_s < answer["expires_at"] < time.time() + ttl_s
        num_pins = small.json("/cache")["pinned"]["pins"]
        if time.time() < answer["expires_at"]:
            break
    assert num_pins == 1
    time.sleep(max(answer["expires_at"] - time.time(), 0) + 0.05)
    assert small.json("/cache")["pinned"]["pins"] == 0  # though no step has run
    assert used_blocks(small) == 0


def test_a_pinned_conversation_serves_those_that_begin_with_it(small: LiveServer) -> None:
    system = {"role": "system", "content": "You mind the mill and answer in one word. " * 5}
    answer = small.json("/cache/pin", {"messages": [system], "cache_salt": "miller"})
    flood(small)
    body = {"messages": [system, {"role": "user", "content": "Who?"}], "max_tokens": 1}
    for salt, least in (("miller", answer["tokens"]), ("baker", 0)):
        usage = small.json("/v1/chat/completions", {**body, "cache_salt": salt})["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == least


def test_salts_are_neither_shared_nor_told(small: LiveServer) -> None:
    prompt, salts = ids(4, 60), ("first-secret", "second-secret")
    pins = [pin(small, prompt, cache_salt=salt)["id"] for salt in salts]
    pin(small, prompt)
    assert cached(small, prompt, cache_salt="third-secret") == 0
    for salt, own in zip(salts, pins, strict=True):
        answer = small.get("/cache", params={"cache_salt": salt})
        assert "secret" not in answer.text
        told = answer.json()
        assert [line["id"] for line in told["pins"]] == [own]
        assert sum(line["own"] for line in told["salts"]) == 1
        assert told["num_salts"] == len({line["salt_hash"] for line in told["salts"]}) == 4
        assert sum(line["positions"] for line in told["salts"]) == told["positions"]
        assert sum(line["bytes"] for line in told["salts"]) == told["bytes"]
    nobody = small.json("/cache?cache_salt=nobody")
    assert nobody["pins"] == []
    assert not any(line["own"] for line in nobody["salts"])
    assert nobody["pinned"]["pins"] == 3
    assert small.get("/cache", params={"cache_salt": "x" * 257}).status_code == 400


def test_the_answer_adds_up(small: LiveServer) -> None:
    before = small.json("/cache")
    assert (before["nodes"], before["positions"], before["bytes"]) == (0, 0, 0)
    [pool] = before["pools"]
    assert pool["blocks"] == pool["free"] == NUM_BLOCKS
    prompt = ids(5, 50)
    assert [cached(small, prompt) for _ in range(3)] == [0, 49, 49]
    after = small.json("/cache")
    [pool] = after["pools"]
    assert pool["held"] == 0
    assert pool["cached"] == 4
    assert pool["cached"] + pool["free"] == NUM_BLOCKS
    assert after["positions"] == 50
    assert after["bytes"] == 4 * pool["block_bytes"]
    change = {name: after["hits"][name] - before["hits"][name]
              for name in ("requests", "requests_hit", "tokens", "tokens_hit")}  # fmt: skip
    assert change == {"requests": 3, "requests_hit": 2, "tokens": 150, "tokens_hit": 98}


def test_too_much_is_refused_in_a_sentence(small: LiveServer) -> None:
    too_long = small.refusal("/cache/pin", {"tokens": ids(6, 450)})  # 29 of 54 blocks
    assert "450 positions cannot be pinned" in too_long["message"]
    pin(small, ids(7, 300))
    error = small.refusal("/cache/pin", {"tokens": ids(8, 300)}, 409)
    assert (error["type"], error["code"]) == ("conflict_error", "pins_full")
    assert "Release others" in error["message"]
    assert small.json("/cache")["pinned"]["pins"] == 1
    assert small.idle()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"tokens": [1], "prompt": "a"}, "prompt"),
        ({"tokens": [10**6]}, None),
        ({"tokens": []}, None),
        ({"prompt": ""}, None),
        ({"prompt": "a", "ttl": 0}, "ttl"),
        ({"prompt": "a", "ttl": -1.5}, "ttl"),
        ({"prompt": "a", "ttl": 1e300}, "ttl"),
        ({"prompt": "a", "ttl": "60"}, "ttl"),
        ({"prompt": "a", "cache_salt": "x" * 257}, "cache_salt"),
        ({"prompt": "a", "cache_salt": 5}, "cache_salt"),
        ({"prompt": "a", "max_tokens": 1}, "max_tokens"),
        ({"messages": [{"role": "sytem", "content": "a"}]}, "messages"),
        ({"tokens": [5] * 600}, None),
    ],
)
def test_what_is_no_pin(small: LiveServer, body: dict[str, Any], param: str | None) -> None:
    error = small.refusal("/cache/pin", body)
    if param is not None:
        assert error["param"] == param
    assert small.json("/cache")["pinned"]["pins"] == 0


@pytest.mark.parametrize("path", ["/cache/reset", "/reset_prefix_cache"])
def test_a_reset_forgets_all_but_pins(small: LiveServer, path: str) -> None:
    pin(small, ids(9, 40))
    assert [cached(small, ids(10, 40)) for _ in range(2)] == [0, 39]
    assert small.json(path, {}) == {"reset": True, "positions": 40}
    assert cached(small, ids(10, 40)) == 0
    assert cached(small, ids(9, 40)) == 39
    assert small.json(path, {"pins": True})["positions"] == 80
    assert small.json("/cache")["positions"] == used_blocks(small) == 0


def test_a_reset_needs_no_body_but_comes_from_no_web_page(small: LiveServer) -> None:
    cached(small, ids(11, 40))
    assert httpx.post(small.url + "/reset_prefix_cache", timeout=60).json()["positions"] == 40
    for headers in ({"origin": "http://evil.example"}, {"content-type": "text/plain"}):
        answer = httpx.post(small.url + "/reset_prefix_cache", headers=headers, timeout=60)
        assert answer.status_code == 415


def test_who_leaves_while_it_is_computed_leaves_no_pin(small: LiveServer) -> None:
    body = {"tokens": ids(12, 400)}
    with RawClient(small.url) as client:
        client.send(request("POST", "/cache/pin", body))
        until(lambda: small.json("/load")["server_load"], "it is computed")
    assert small.idle(1.0)
    assert small.json("/cache")["pinned"]["pins"] == 0
    assert used_blocks(small) == 0


def test_without_a_cache_everything_says_so() -> None:
    with serving("smollm2-135m", *BUDGET, "--no-enable-prefix-caching") as server:
        assert [cached(server, ids(1, 100)) for _ in range(2)] == [0, 0]
        assert "prefix cache is off" in server.refusal("/cache/pin", {"prompt": "a"})["message"]
        told = server.json("/cache")
        assert told["enabled"] is False
        assert (told["nodes"], told["hits"]["requests"]) == (0, 0)
        assert server.json("/cache/reset", {}) == {"reset": True, "positions": 0}
        assert 'enable_prefix_caching="False"' in server.get("/metrics").text
