"""Spans and logs of a real server: an OTLP receiver decodes what arrives; nothing leaks prompts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from headrace.errors import UsageError
from headrace.server.tracing import Tracer, traces_url
from headrace.server.visit import Visit
from live_server import LiveServer, serving
from waiting import until

pytestmark = pytest.mark.models

SECRET = "The combination is swordfish"


class Receiver:
    """A small OTLP/HTTP collector. answering: cleared, it takes requests and never answers."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resource: dict[str, Any] = {}
        self.answering = threading.Event()
        self.answering.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.answering.wait()
                receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.resource = plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def span_of(self, request_id: str) -> Span:
        """Waits for the span of a request."""

        def found() -> Span | None:
            for span in self.spans:
                if plain(span.attributes)["http.request.header.x-request-id"] == request_id:
                    return span
            return None

        return until(found, f"a span of {request_id}")

    def close(self) -> None:
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()


def plain(attributes: Any) -> dict[str, Any]:
    """Protobuf's key-value pairs as a dict."""

    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        if kind == "array_value":
            return [value(each) for each in any_value.array_value.values]
        return getattr(any_value, kind)

    return {pair.key: value(pair.value) for pair in attributes}


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def traced(receiver: Receiver) -> Iterator[LiveServer]:
    options = (
        "--otlp-endpoint", receiver.url, "--log-format", "json", "--metrics-prefix", "vllm",
        "--max-model-len", "1024",
    )  # fmt: skip
    with serving("smollm2-135m", *options, env={"OTEL_BSP_SCHEDULE_DELAY": "50"}) as server:
        yield server


def record_of(server: LiveServer, request_id: str) -> dict[str, Any]:
    """Waits for the log record of a request; every line of the log must be JSON."""

    def found() -> dict[str, Any] | None:
        for line in server.log().splitlines():
            record: dict[str, Any] = json.loads(line)
            if record.get("request_id") == request_id:
                return record
        return None

    return until(found, f"a record of {request_id}")


def test_a_span_and_a_record_tell_of_a_chat(traced: LiveServer, receiver: Receiver) -> None:
    body = {
        "messages": [{"role": "user", "content": SECRET}],
        "max_tokens": 6, "ignore_eos": True, "temperature": 0.5, "seed": 7, "top_p": 0.9,
        "top_k": 40, "stop": ["\u2603"], "n": 2,
    }  # fmt: skip
    trace_id, parent_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace_id}-{parent_id}-01", "x-request-id": "chat-1"}
    before_s = time.time()
    reply = traced.post("/v1/chat/completions", body, headers=headers)
    answer = reply.json()
    assert reply.headers["x-request-id"] == "chat-1"

    span = receiver.span_of("chat-1")
    assert span.name == "chat smollm2-135m"
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.trace_id.hex() == trace_id
    assert span.parent_span_id.hex() == parent_id
    assert before_s - 1 < span.start_time_unix_nano / 1e9 < span.end_time_unix_nano / 1e9
    assert span.end_time_unix_nano / 1e9 < time.time() + 1
    found = plain(span.attributes)
    port = httpx.URL(traced.url).port
    wanted = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "smollm2-135m", "gen_ai.response.model": "smollm2-135m",
        "gen_ai.request.max_tokens": 6, "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7, "gen_ai.request.top_p": 0.9, "gen_ai.request.top_k": 40,
        "gen_ai.request.stop_sequences": ["\u2603"], "gen_ai.request.choice.count": 2,
        "gen_ai.response.id": answer["id"],
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"],
        "gen_ai.usage.output_tokens": 12,
        "server.address": "127.0.0.1", "server.port": port,
        "http.route": "/v1/chat/completions", "http.response.status_code": 200,
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == wanted
    timings = answer["timings"]
    assert found["gen_ai.latency.time_to_first_token"] == pytest.approx(timings["ttft_ms"] / 1e3)
    assert found["gen_ai.latency.time_in_queue"] == pytest.approx(timings["queue_ms"] / 1e3)
    assert "error.type" not in found
    [event] = span.events
    after_s = (event.time_unix_nano - span.start_time_unix_nano) / 1e9
    assert after_s == pytest.approx(timings["ttft_ms"] / 1e3, abs=1e-3)
    assert receiver.resource["service.name"] == "headrace"

    record = record_of(traced, "chat-1")
    assert record["level"] == "info"
    assert record["message"] == "POST /v1/chat/completions"
    facts = {
        "status": 200, "model": "smollm2-135m", "output_tokens": 12, "cached_tokens": 0,
        "prompt_tokens": answer["usage"]["prompt_tokens"], "queue_ms": timings["queue_ms"],
        "ttft_ms": timings["ttft_ms"], "finish_reasons": ["length", "length"],
    }  # fmt: skip
    assert {name: record[name] for name in facts} == facts
    assert record["total_ms"] >= record["ttft_ms"]


def test_a_refused_request_has_a_span_and_a_record(traced: LiveServer, receiver: Receiver) -> None:
    traced.post(
        "/v1/completions", {"prompt": SECRET, "top_p": -1}, headers={"x-request-id": "bad-1"}
    )
    span = receiver.span_of("bad-1")
    found = plain(span.attributes)
    assert span.name == "text_completion"
    assert found["error.type"] == "400"
    assert span.status.code == Status.STATUS_CODE_UNSET  # the client's mistake
    assert len(span.trace_id) == 16
    record = record_of(traced, "bad-1")
    assert record["status"] == 400
    assert "output_tokens" not in record


def test_a_client_that_leaves_is_told_of(traced: LiveServer, receiver: Receiver) -> None:
    body = {"prompt": SECRET, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with traced.http.stream(
        "POST", "/v1/completions", json=body, headers={"x-request-id": "gone-1"}
    ) as stream:
        next(stream.iter_lines())
    record = record_of(traced, "gone-1")
    assert record["status"] == 499
    assert record["problem"] == "client_left"
    assert record["finish_reasons"] == ["abort"]
    found = plain(receiver.span_of("gone-1").attributes)
    assert found["error.type"] == "client_left"
    assert found["gen_ai.usage.output_tokens"] == record["output_tokens"] > 0


def test_a_deadline_is_told_of(traced: LiveServer) -> None:
    body = {"prompt": SECRET, "max_tokens": 1000, "ignore_eos": True, "timeout": 0.05}
    answer = traced.post("/v1/completions", body, headers={"x-request-id": "late-1"})
    assert answer.status_code == 408
    assert record_of(traced, "late-1")["problem"] == "deadline_exceeded"


def test_an_invented_request_id_is_replaced(traced: LiveServer) -> None:
    answer = traced.get("/version", headers={"x-request-id": "two words"})
    assert answer.headers["x-request-id"].startswith("req-")


def test_no_text_of_prompts_in_log_or_spans(traced: LiveServer, receiver: Receiver) -> None:
    traced.post("/v1/completions", {"prompt": SECRET, "max_tokens": 3}, headers={
        "x-request-id": "quiet-1"})  # fmt: skip
    traced.post("/v1/completions", {"prompt": SECRET, "logit_bias": {"x": 1}})
    receiver.span_of("quiet-1")
    assert "swordfish" not in traced.log()
    assert not any(b"swordfish" in span.SerializeToString() for span in receiver.spans)


def test_the_metrics_take_another_prefix(traced: LiveServer) -> None:
    text = traced.get("/metrics").text
    assert "vllm:time_to_first_token_seconds_bucket" in text
    assert "headrace:" not in text


def test_a_collector_that_hangs_holds_up_nothing() -> None:
    """Every request ends at once while the collector has answered none; the rest is dropped."""
    hanging = Receiver()
    hanging.answering.clear()
    tracer = Tracer(hanging.url)
    for number in range(5000):
        visit = Visit(f"v-{number}", "POST", "/v1/completions")
        visit.route, visit.status = "/v1/completions", 200
        visit.end({})
        tracer.record(visit)
    assert hanging.spans == []
    hanging.close()
    tracer.close()


def test_endpoints() -> None:
    assert traces_url("http://c:4318") == traces_url("http://c:4318/") == "http://c:4318/v1/traces"
    assert traces_url("https://c/x/v1/traces") == "https://c/x/v1/traces"
    for bad in ("c:4318", "ftp://c", "http://", "http://[::", "http://c:99999"):
        with pytest.raises(UsageError, match="--otlp-endpoint"):
            traces_url(bad)
