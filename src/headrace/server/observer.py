"""Observer: what is told when an HTTP request is over: a count, a log line, a span."""

from __future__ import annotations

import logging

from headrace.server.context import Context
from headrace.server.respond import CLIENT_LEFT, DEADLINE, SHUTDOWN
from headrace.server.tracing import Tracer
from headrace.server.visit import CLIENT_GONE, Visit

_LOG = logging.getLogger("headrace.server")
#: Why a flow was cancelled → the word for it.
_PROBLEMS = {CLIENT_LEFT: "client_left", DEADLINE: "deadline_exceeded", SHUTDOWN: "shutdown"}


class Observer:
    """Tells of the requests of one server. Asyncio thread only."""

    def __init__(self, context: Context) -> None:
        self._context = context
        endpoint = context.settings.otlp_endpoint
        self._tracer = None if endpoint is None else Tracer(endpoint)

    def ended(self, visit: Visit) -> None:
        """A request is over; `visit` is complete."""
        flow = visit.flow
        if flow is not None and flow.cancelled is not None:
            visit.problem = _PROBLEMS.get(flow.cancelled, flow.cancelled)
            if flow.cancelled == CLIENT_LEFT:
                visit.status = CLIENT_GONE
        self._context.http.ended(visit.method, visit.route, visit.status)
        if self._tracer is not None:
            self._tracer.record(visit)
        level = _level(visit)
        if _LOG.isEnabledFor(level):
            _log(visit, level)

    def close(self) -> None:
        """Sends what waits to be sent, for a moment at most."""
        if self._tracer is not None:
            self._tracer.close()


def _level(visit: Visit) -> int:
    """Generating requests and refusals are information, a look at /health is not."""
    if visit.method == "GET" and (visit.status < 400 or visit.status == 503):
        return logging.DEBUG
    return logging.WARNING if visit.status >= 500 else logging.INFO


def _log(visit: Visit, level: int) -> None:
    extra = {"request_id": visit.name, "status": visit.status}
    if visit.problem is not None:
        extra["problem"] = visit.problem
    extra |= visit.facts()
    extra["total_ms"] = round(visit.total_s * 1e3, 3)
    _LOG.log(level, "%s %s", visit.method, visit.path[:200], extra=extra)
