"""Spans: one per generating request, made when it is over, sent by a thread of the SDK's own.

Making a span is all that a request pays for; when the collector is slow or gone, spans are dropped
and nothing waits. The libraries are loaded only where an endpoint was given.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from headrace import __version__
from headrace.engine.params import DefaultLimit, SamplingParams
from headrace.errors import UsageError
from headrace.server import otel_names as names
from headrace.server.visit import Visit

Value = str | int | float | bool | Sequence[str]

#: Seconds that a stopping server gives to spans that are not sent yet.
LAST_SPANS_S = 2.0


class Tracer:
    """Sends spans to an OTLP/HTTP endpoint (its base URL, or the full one that ends in /v1/traces).
    The standard OTEL_… variables set everything else. Raises UsageError without the libraries, and
    for what is no URL."""

    def __init__(self, endpoint: str) -> None:
        url = traces_url(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise UsageError(
                f"Spans need {error.name}: pip install 'headrace[otel]', or leave out "
                f"--otlp-endpoint."
            ) from None
        resource = Resource.create({names.SERVICE_VERSION: __version__})
        if str(resource.attributes.get(names.SERVICE_NAME)).startswith("unknown_service"):
            resource = resource.merge(Resource({names.SERVICE_NAME: "headrace"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("headrace", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, visit: Visit) -> None:
        """The span of a request that is over, if its route makes one."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        operation = names.OPERATIONS.get(visit.route)
        if operation is None or visit.method != "POST":
            return
        carrier = {"traceparent": visit.traceparent or "", "tracestate": visit.tracestate or ""}
        span = self._tracer.start_span(
            f"{operation} {visit.model}" if visit.model else operation,
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=attributes_of(visit, operation),
            start_time=_unix_ns(visit, visit.arrived_s),
        )
        if span.is_recording():
            first_s = first_token_s(visit)
            if first_s is not None:
                span.add_event(names.FIRST_TOKEN, timestamp=_unix_ns(visit, first_s))
            if visit.failed:
                span.set_status(Status(StatusCode.ERROR, visit.problem))
        span.end(_unix_ns(visit, visit.ended_s))

    def close(self) -> None:
        """Sends what waits, for a moment at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(LAST_SPANS_S)


def traces_url(endpoint: str) -> str:
    """The URL that spans are posted to. Raises UsageError."""
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UsageError(
            f"--otlp-endpoint must be an http or https URL, such as http://localhost:4318, not "
            f"{endpoint!r}."
        )
    return endpoint if parts.path.endswith("/v1/traces") else endpoint.rstrip("/") + "/v1/traces"


def attributes_of(visit: Visit, operation: str) -> dict[str, Value]:
    """What a span says of a request. No text of prompts or answers."""
    found: dict[str, Value | None] = {
        names.OPERATION_NAME: operation,
        names.PROVIDER_NAME: names.PROVIDER,
        names.REQUEST_MODEL: visit.model,
        names.RESPONSE_MODEL: visit.model,
        names.RESPONSE_ID: visit.answer_id,
        names.SERVER_ADDRESS: visit.server[0],
        names.SERVER_PORT: visit.server[1],
        names.HTTP_METHOD: visit.method,
        names.HTTP_ROUTE: visit.route,
        names.HTTP_STATUS: visit.status,
        names.REQUEST_ID: visit.name,
        names.ERROR_TYPE: visit.problem or (str(visit.status) if visit.status >= 400 else None),
    }
    if visit.flow is not None:
        found |= _of_params(visit.flow.jobs[0].params)
        found |= _of_results(visit.facts())
    return {name: value for name, value in found.items() if value is not None}


def _of_params(params: SamplingParams) -> dict[str, Value | None]:
    limit = params.max_tokens
    return {
        names.REQUEST_MAX_TOKENS: None if isinstance(limit, DefaultLimit) else limit,
        names.REQUEST_TEMPERATURE: float(params.temperature),
        names.REQUEST_TOP_P: float(params.top_p),
        names.REQUEST_TOP_K: params.top_k if params.top_k > 0 else None,
        names.REQUEST_SEED: params.seed if params.seed is None or params.seed < 1 << 63 else None,
        names.REQUEST_STOP: list(params.stop) or None,
        names.REQUEST_FREQUENCY_PENALTY: float(params.frequency_penalty) or None,
        names.REQUEST_PRESENCE_PENALTY: float(params.presence_penalty) or None,
        names.REQUEST_CHOICES: params.n if params.n > 1 else None,
    }


def _of_results(facts: Mapping[str, Any]) -> dict[str, Value | None]:
    return {
        names.USAGE_INPUT_TOKENS: facts["prompt_tokens"],
        names.USAGE_OUTPUT_TOKENS: facts["output_tokens"],
        names.USAGE_CACHED_TOKENS: facts["cached_tokens"] or None,
        names.RESPONSE_FINISH_REASONS: facts["finish_reasons"] or None,
        names.TIME_IN_QUEUE: _seconds(facts["queue_ms"]),
        names.TIME_TO_FIRST_TOKEN: _seconds(facts["ttft_ms"]),
    }


def first_token_s(visit: Visit) -> float | None:
    """When the first token of any job was drawn, monotonic."""
    if visit.flow is None:
        return None
    requests = [job.request for job in visit.flow.jobs if job.request is not None]
    return min((r.first_token_s for r in requests if r.first_token_s is not None), default=None)


def _unix_ns(visit: Visit, monotonic_s: float) -> int:
    """A moment of a request on the clock on the wall."""
    return int((visit.arrived_unix_s + (monotonic_s - visit.arrived_s)) * 1e9)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3
