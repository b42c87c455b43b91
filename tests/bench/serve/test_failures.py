"""Servers that fail, refuse, stall or talk nonsense, over real sockets: every failure has its kind,
none is counted as an answer, and nothing hangs."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.serve.small_server import SmallServer, serving
from bench.serve.virtual import (
    END,
    HEAD,
    MODELS,
    event,
    response,
    run_virtual,
    text,
    usage_chunk,
)  # fmt: skip
from headrace.bench.serve.jobs import CHAT, COMPLETIONS
from headrace.bench.serve.plan import Data, Load, Wanted
from headrace.bench.serve.result import to_dict
from headrace.bench.serve.run import measure, run_load
from headrace.bench.serve.target import parse_target
from headrace.errors import EndpointError, UsageError

GOOD = HEAD + event(text("a", "stop")) + event(usage_chunk(1)) + event(b"[DONE]") + END


def load(
    url: str, *, count: int = 4, timeout_s: float = 30.0, endpoint: str = COMPLETIONS,
    num_warmups: int = 0, text_prompts: bool = False, **wanted: Any,
) -> dict[str, Any]:  # fmt: skip
    """The report as data, after two requests at a time."""
    outcome = run_load(
        Wanted(
            parse_target(url, **wanted),
            Data(count=count, text_prompts=text_prompts),
            Load(max_concurrency=2, num_warmups=num_warmups, timeout_s=timeout_s),
            endpoint,
        )
    )
    return to_dict(outcome, requests=True)


def answering(data: bytes, *, close: bool = False, every: int = 2) -> Any:
    """Every second completion is `data` (then the connection closes, or stays open), the others
    are good."""
    count = 0

    async def answer(
        server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        nonlocal count
        if path == "/v1/models":
            writer.write(MODELS)
            return
        count += 1
        if count % every:
            writer.write(GOOD)
            return
        writer.write(data)
        if close:
            writer.close()

    return answer


GZIPPED = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
ERROR = b'{"error": {"message": "queue\\n full", "type": "rate_limit_exceeded"}}'


@pytest.mark.parametrize(
    ("data", "close", "kind", "detail"),
    [
        (response(ERROR, "429 Too Many Requests"), False, "http_429", "queue full"),
        (response(b"<html>", "502 Bad Gateway"), True, "http_502", "<html>"),
        (HEAD + event(text("a")) + event(json.loads(ERROR)), True, "error_chunk", "queue full"),
        (HEAD + event(text("a")) + event(json.loads(ERROR)) + END, False, "error_chunk", "queue"),
        (HEAD + event(text("a")) + event(b"[DONE]") + END, False, "no_finish_reason", "1 chunks"),
        (HEAD + event(text("", "stop")) + END, False, "no_tokens", "'stop'"),
        (HEAD + event(text("a", "stop")), True, "disconnected", "in the middle"),
        (b"", True, "disconnected", "before its answer"),
        (HEAD + event(b"{"), False, "bad_chunk", "no JSON"),
        (HEAD + event(b"[1]"), False, "bad_chunk", "no JSON object"),
        (HEAD + event(b"\xff" * 9), False, "bad_chunk", "no JSON"),
        (HEAD + event(b"[" * 100_000), False, "bad_chunk", "no JSON"),
        (response(b'{"choices": []}'), False, "not_streamed", "content-type none"),
        (GZIPPED + event(b"\x1f\x8b\x08") + END, False, "not_streamed", "content-encoding gzip"),
        (response(b"\x1b[2J\x9bwiped", "500 No"), False, "http_500", "\ufffd[2J\ufffdwiped"),
        (b"\x16\x03\x01 not HTTP at all\r\n\r\n", False, "bad_http", "not HTTP/1"),
        (HEAD + b"zzz\r\n", False, "bad_http", "chunk of size"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, False, "too_large", "64 KiB"),
    ],
)
def test_every_failure_has_its_kind(data: bytes, close: bool, kind: str, detail: str) -> None:
    # The last case of a closed connection: a new one is tried once, and it fails the same way.
    every = 1 if data == b"" else 2
    with serving(answering(data, close=close, every=every)) as server:
        report = load(server.url)
    failed = 4 // every
    assert report["failures"] == {kind: failed}
    assert report["completed"] == 4 - failed
    assert detail in report["failure_details"][kind]
    assert "\n" not in report["failure_details"][kind]
    assert any(f"{failed} requests failed, {kind}" in warning for warning in report["warnings"])
    if failed < 4:
        assert report["ttft_ms"]["count"] == report["e2el_ms"]["count"] == 4 - failed


def test_a_server_that_stalls_is_given_up() -> None:
    with serving(answering(HEAD + event(text("a")))) as server:
        report = load(server.url, timeout_s=1.0)
    assert report["failures"] == {"timeout": 2}
    assert report["completed"] == 2


def test_a_stream_without_end_is_given_up() -> None:
    async def answer(
        server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        writer.write(MODELS if path == "/v1/models" else HEAD)
        while path != "/v1/models":
            writer.write(event(text("x")) * 100)
            await writer.drain()
            await asyncio.sleep(0)

    with serving(answer) as server:
        report = load(server.url, count=2, timeout_s=0.3)
    assert report["failures"] == {"timeout": 2}


def test_nobody_listens() -> None:
    with serving(answering(b"")) as server:
        url = server.url
    with pytest.raises(EndpointError, match=r"cannot be measured: 127\.0\.0\.1:\d+: "):
        load(url)


def test_a_failing_warm_up_says_why() -> None:
    refusal = response(b'{"error": {"message": "no such model"}}', "404 Not Found")
    with (
        serving(answering(refusal, every=1)) as server,
        pytest.raises(EndpointError, match="http_404: no such model"),
    ):
        load(server.url, num_warmups=2)


@pytest.mark.parametrize("uvloop", [True, False])
def test_kept_connections_and_those_that_the_server_closes(
    uvloop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the faster event loop where it is installed, and with the standard one."""
    if not uvloop:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with serving(answering(GOOD, close=True, every=3)) as server:
        report = load(server.url, count=40)
    assert report["completed"] == 40
    assert report["failures"] == {}
    assert 2 <= report["overhead"]["connections"] < 40
    with serving(answering(GOOD)) as server:
        report = load(server.url, count=40)
    # One was open from asking for the models.
    assert report["overhead"]["connections"] == 1
    assert uvloop or report["overhead"]["event_loop"] == "asyncio"


def test_a_body_that_only_the_end_of_the_connection_ends() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    events = [json.dumps(text("a")), json.dumps(text("b", "stop")), "[DONE]"]
    data = head + "".join(f"data: {e}\n\n" for e in events).encode()
    for close in (True, False):
        with serving(answering(data, close=close, every=1)) as server:
            report = load(server.url)
        assert report["completed"] == 4
        assert report["token_sources"] == {"chunks counted: the server reports no usage": 4}
        assert any("counted chunks" in warning for warning in report["warnings"])


def test_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = Path(__file__).parent / "localhost.pem"
    with serving(answering(GOOD, every=1), certificate) as server:
        assert server.url.startswith("https://")
        with pytest.raises(EndpointError, match="certificate verify failed"):
            load(server.url)
        assert load(server.url, verify=False)["completed"] == 4
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert load(server.url)["completed"] == 4


def test_the_servers_cpu_time_where_it_tells() -> None:
    lines = b"# HELP process_cpu_seconds_total x\nprocess_cpu_seconds_total %d.5\nother 3\n"
    for text_, expected in ((lines, 1.0), (b"other 3\n", None), (b"\xff", None)):
        count = iter(range(9))

        def script(request: bytes, text_: bytes = text_, count: Any = count) -> Any:
            if b"/metrics" in request:
                body = text_ % next(count) if b"%d" in text_ else text_
                return [(0.0, response(body))]
            return [(0.0, MODELS if request.startswith(b"GET") else GOOD)]

        wanted = Wanted(parse_target("http://scripted"), Data(count=1), Load(), COMPLETIONS)
        outcome = run_virtual(script, lambda client, w=wanted: measure(client, w, lambda _: None))
        assert outcome.server_cpu_s == expected


# ---- what is sent -------------------------------------------------------------------------------


def refusing(words: list[str]) -> Any:
    """Answers 400 naming the first of `words` that stands in the request."""

    async def answer(
        server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        if path == "/v1/models":
            writer.write(MODELS)
            return
        found = next((word for word in words if word in json.dumps(body)), None)
        if found is None:
            writer.write(GOOD)
            return
        error = {"error": {"message": f"{found}: Extra inputs are not permitted", "param": found}}
        writer.write(response(json.dumps(error).encode(), "400 Bad Request"))

    return answer


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        ([], {"include_usage": True, "continuous_usage_stats": True}),
        (["continuous_usage_stats"], {"include_usage": True}),
        (["stream_options"], None),
        (["continuous_usage_stats", "stream_options"], None),
    ],
)
@pytest.mark.parametrize("num_warmups", [0, 1])
def test_usage_is_negotiated(words: list[str], accepted: Any, num_warmups: int) -> None:
    with serving(refusing(words)) as server:
        report = load(server.url, num_warmups=num_warmups)
    assert report["completed"] == 4
    assert report["failures"] == {}
    _, body = server.requests[-1]
    assert body.get("stream_options") == accepted
    assert body["stream"] is True
    assert bool(report["conditions"]["usage_refused"]) == bool(words)


def test_another_400_is_no_negotiation() -> None:
    with serving(refusing(["ignore_eos"])) as server:
        report = load(server.url)
    assert report["failures"] == {"http_400": 4}
    assert "ignore_eos: Extra inputs" in report["failure_details"]["http_400"]
    assert report["completed"] == 0


def test_what_a_request_holds() -> None:
    with serving(answering(GOOD)) as server:
        load(server.url + "/v1/", api_key="secret", headers=["X-Tenant: a", "x-b=c:d"])
    path, body = server.requests[-1]
    assert path == COMPLETIONS
    assert len(body["prompt"]) == 128
    assert all(1000 <= i < 30_000 for i in body["prompt"])
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (64, 0.0, True)
    assert body["model"] == "scripted"
    assert server.headers["authorization"] == "Bearer secret"
    assert (server.headers["x-tenant"], server.headers["x-b"]) == ("a", "c:d")
    prompts = [str(body["prompt"]) for path, body in server.requests if path == COMPLETIONS]
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("template", [7, 200])
def test_words_are_made_exact_where_the_server_counts(template: int, endpoint: str) -> None:
    """A server whose tokens are two per word but the last, behind a template of so many tokens."""

    def count(prompt: Any) -> int:
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]
        return template + 2 * len(text.split()) - 1

    async def answer(
        server: SmallServer, path: str, body: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        prompt = body.get("messages", body.get("prompt"))
        if path == "/v1/models":
            writer.write(MODELS)
        elif path == "/tokenize":
            writer.write(response(json.dumps({"count": count(prompt)}).encode()))
        else:
            writer.write(GOOD)

    with serving(answer) as server:
        report = load(server.url, endpoint=endpoint, text_prompts=True)
    counts = {
        count(body.get("messages", body.get("prompt")))
        for path, body in server.requests
        if path == endpoint
    }
    exact = template < 128
    assert report["conditions"]["exact_prompts"] == exact
    assert (counts == {128}) == exact


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://x", "--base-url must be"),
        ("http://", "--base-url must be"),
        ("http://x:99999", "--base-url must be"),
        ("http://x:0", "--base-url must be"),
        ("http://é", "--base-url must be printable ASCII"),
        ("http://user:secret@x", "give a key with --api-key"),
    ],
)
def test_addresses_that_are_none(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_target(url)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://api.example/v1/", "https://api.example:443"),
        ("http://[::1]:9/llm", "http://[::1]:9/llm"),
    ],
)
def test_addresses(url: str, expected: str) -> None:
    assert parse_target(url).url == expected


@pytest.mark.parametrize("header", ["nothing", ": x", "Host: x", "a b: c", "X: a\r\nY: b", "X: é"])
def test_headers_that_are_none(header: str) -> None:
    with pytest.raises(UsageError, match="--header"):
        parse_target("http://x", headers=[header])
