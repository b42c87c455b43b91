"""What the openai package raises, and what it retries by itself, on each kind of refusal."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from live_server import API_KEY, LiveServer

pytestmark = pytest.mark.models

MODEL = "smollm2-135m"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def client(guarded: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guarded.api, api_key=API_KEY, max_retries=0) as made:
        yield made


def test_a_wrong_key(guarded: LiveServer) -> None:
    with openai.OpenAI(base_url=guarded.api, api_key="wrong", max_retries=0) as client:
        for call in (client.models.list, lambda: client.models.retrieve(MODEL)):
            with pytest.raises(openai.AuthenticationError) as caught:
                call()
            assert caught.value.code == "invalid_api_key"
            assert caught.value.request_id


def test_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "gpt-9" in caught.value.message
    assert MODEL in caught.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.5, "extra_body": {"top_p": "high"}}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"extra_body": {"allowed_token_ids": [-5]}}, "allowed_token_ids"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"seed": -1}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"tempurature": 1}}, "tempurature"),
        ({"messages": [{"role": "usr", "content": "Hello"}]}, "messages"),
        ({"extra_body": {"structured_outputs": {"regx": "a"}}}, "structured_outputs"),
        ({"extra_body": {"mirostat": 2}}, "mirostat"),
    ],
)
def test_row_32_a_wrong_field_is_named(
    client: openai.OpenAI, guarded: LiveServer, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO} | fields)
    assert param in caught.value.message
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert guarded.healthy()


@pytest.mark.parametrize(
    ("path", "body", "status", "hint"),
    [
        ("/chat/completions", {}, 404, "Did you mean /v1/chat/completions?"),
        ("/v1/v1/completions", {}, 404, "Did you mean /v1/completions?"),
        ("/", {}, 404, "/openapi.json"),
        ("/v1/chat/completions", {"prompt": "x"}, 400, "prompt is for /v1/completions"),
        ("/v1/completions", {"messages": HELLO}, 400, "messages is for /v1/chat/completions"),
        ("/v1/responses", {"input": "x", "max_tokens": 1}, 400, "mean max_output_tokens?"),
        ("/v1/chat/completions", {"messages": [{"role": "usr", "content": "x"}]}, 400, "'usr'"),
    ],
)
def test_a_usual_mistake_is_answered_with_what_was_meant(
    guarded: LiveServer, path: str, body: dict[str, object], status: int, hint: str
) -> None:
    assert hint in guarded.refusal(path, body, status)["message"]


def test_row_32_what_cannot_change_the_answer_is_ignored_aloud(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=1, store=False, metadata={"a": "b"},
        service_tier="auto", prompt_cache_key="k", user="u",
    )  # fmt: skip
    ignored = set(raw.headers["x-headrace-ignored"].split(", "))
    assert ignored == {"store", "metadata", "service_tier", "prompt_cache_key", "user"}


def ids(count: int) -> list[int]:
    return [504] * count


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("count", "max_tokens"), [(512, 1), (512, None), (513, 1), (2000, 8)])
def test_rows_49_and_57_a_prompt_over_the_window_is_refused_with_the_numbers(
    client: openai.OpenAI, count: int, max_tokens: int | None, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(
            model=MODEL, prompt=ids(count), max_tokens=max_tokens, stream=stream
        )
    assert caught.value.code == "context_length_exceeded"
    for number in ("512", str(count)):
        assert number in caught.value.message.replace(",", "")
    assert not re.search(r"-\d", caught.value.message)  # no negative count


def test_rows_49_and_57_what_fits_is_served(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "temperature": 0, "extra_body": {"ignore_eos": True}}
    full = client.completions.create(prompt=ids(511), max_tokens=1, **asked)
    assert full.usage.prompt_tokens == 511
    assert full.usage.completion_tokens == 1
    # Nothing asked for: what the context still holds.
    rest = client.completions.create(prompt=ids(508), **asked)
    assert (rest.usage.completion_tokens, rest.choices[0].finish_reason) == (4, "length")
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(prompt=ids(508), max_tokens=5, **asked)
    for number in ("512", "508", "5"):
        assert number in caught.value.message
    text = "The secret word is heron. " + "The mill turns. " * 600
    with pytest.raises(openai.BadRequestError, match="512"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": text}])
    cut = client.completions.create(
        model=MODEL, prompt=text, max_tokens=1, extra_body={"truncate_prompt_tokens": -1}
    )
    assert cut.usage.prompt_tokens < 512


# ---- busy ---------------------------------------------------------------------------------------


class Crowd:
    """Long streams that fill a server: two run, two wait. `leave` closes them."""

    def __init__(self, server: LiveServer) -> None:
        self._http = httpx.Client(base_url=server.url, headers=server.http.headers, timeout=60)
        body = {"prompt": ids(8), "max_tokens": 480, "ignore_eos": True, "stream": True,
                "logprobs": 20}  # fmt: skip
        self._answers = [
            self._http.send(self._http.build_request("POST", "/v1/completions", json=body),
                            stream=True)
            for _ in range(4)
        ]  # fmt: skip
        assert all(answer.status_code == 200 for answer in self._answers)

    def leave(self) -> None:
        for answer in self._answers:
            answer.close()
        self._http.close()


def test_a_full_queue_is_a_rate_limit_error(client: openai.OpenAI, guarded: LiveServer) -> None:
    crowd = Crowd(guarded)
    try:
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
        assert caught.value.code == "queue_full"
        assert int(caught.value.response.headers["retry-after"]) >= 1
    finally:
        crowd.leave()
    assert guarded.idle(2.0)


def test_the_sdk_waits_as_long_as_it_is_told_and_succeeds(guarded: LiveServer) -> None:
    """Its own back-off would start below half a second; Retry-After says one."""
    crowd = Crowd(guarded)
    threading.Timer(0.5, crowd.leave).start()
    began = time.monotonic()
    with openai.OpenAI(base_url=guarded.api, api_key=API_KEY, max_retries=9) as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=HELLO, max_tokens=1
        )
    assert raw.retries_taken >= 1
    assert time.monotonic() - began >= 0.95
    assert raw.parse().usage.completion_tokens == 1


# ---- in the middle ------------------------------------------------------------------------------


def test_a_stream_that_fails_raises_api_error(client: openai.OpenAI, guarded: LiveServer) -> None:
    """The request's own time limit ends it after some tokens have been sent."""
    for timeout_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2):  # until there is time for a first token
        texts, error = until_it_fails(client, timeout_s)
        assert "time limit" in error.message
        assert error.code == "deadline_exceeded"
        assert guarded.idle(2.0)
        if texts:
            return
    raise AssertionError("no token came in time")


def until_it_fails(client: openai.OpenAI, timeout_s: float) -> tuple[list[str], openai.APIError]:
    """What a stream with a time limit has said, and the error that ended it."""
    texts = []
    try:
        stream = client.completions.create(
            model=MODEL, prompt=ids(8), max_tokens=500, stream=True, logprobs=20,
            extra_body={"ignore_eos": True, "timeout": timeout_s},
        )  # fmt: skip
        for chunk in stream:
            texts.append(chunk.choices[0].text)
    except openai.APIError as error:
        return texts, error
    raise AssertionError("the stream ended well")


def test_a_client_that_gives_up_leaves_nothing_running(
    guarded: LiveServer, client: openai.OpenAI
) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.1).completions.create(
            model=MODEL, prompt=ids(8), max_tokens=500, extra_body={"ignore_eos": True}
        )
    assert guarded.idle(1.0)
    stream = client.completions.create(
        model=MODEL, prompt=ids(8), max_tokens=500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert guarded.idle(1.0)


# ---- the key ------------------------------------------------------------------------------------


def test_row_58_only_health_is_open_without_the_key(guarded: LiveServer) -> None:
    document = guarded.json("/openapi.json")
    paths = [(method, path) for path, item in document["paths"].items() for method in item]
    assert len(paths) > 10
    for method, path in [*paths, ("get", "/openapi.json"), ("get", "/no/such/route")]:
        path = path.replace("{model_id}", MODEL)
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": API_KEY}):
            answer = httpx.request(method, guarded.url + path, headers=headers, timeout=30)
            assert answer.status_code == (200 if path == "/health" else 401), (method, path)
    for headers in ({"authorization": f"Bearer {API_KEY}"}, {"x-api-key": API_KEY}):
        answer = httpx.get(f"{guarded.url}/v1/models", headers=headers, timeout=30)
        assert answer.status_code == 200
