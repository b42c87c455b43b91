"""Visit: one HTTP request, from its headers to its last byte, as logs, metrics and spans see it.

The entrance (middleware.py) opens it and ends it; a generating route adds its flow. Nothing in it
is text of a prompt or an answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.types import Scope

if TYPE_CHECKING:
    from headrace.server.flow import Flow

#: Of a request whose client went away before its end.
CLIENT_GONE = 499


@dataclass(slots=True, eq=False)
class Visit:
    """name: the request's id, from its client or ours. route: the path's template, "other" for a
    path that does not exist. arrived_s: monotonic; arrived_unix_s: the same moment on the clock on
    the wall. status: as sent; 0 = nothing was sent. problem: what ended it badly, in one word.
    traceparent, tracestate: W3C headers as they came. flow: of a generating request that was
    queued; model, answer_id: what its answer carries. server: address and port it came to."""

    name: str
    method: str
    path: str
    arrived_s: float = field(default_factory=time.monotonic)
    arrived_unix_s: float = field(default_factory=time.time)
    route: str = "other"
    status: int = 0
    problem: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    flow: Flow | None = None
    model: str | None = None
    answer_id: str | None = None
    server: tuple[str, int | None] = ("", None)
    ended_s: float = 0.0

    def end(self, scope: Scope) -> None:
        """Notes what is known at the end."""
        self.ended_s = time.monotonic()
        route = scope.get("route")
        if route is not None:
            self.route = route.path
        if not self.status:
            self.status = CLIENT_GONE
        server = scope.get("server")
        if server is not None:
            self.server = (server[0], server[1])

    @property
    def failed(self) -> bool:
        """Whether it was the server's fault that it did not go well."""
        return self.status >= 500 or self.problem in ("server_error", "shutdown")

    @property
    def total_s(self) -> float:
        """From arrival to end."""
        return self.ended_s - self.arrived_s

    def facts(self) -> dict[str, Any]:
        """Of the generation: counts of all its jobs, times of the slowest. {} without one."""
        if self.flow is None:
            return {}
        requests = [job.request for job in self.flow.jobs if job.request is not None]
        samples = [sample for request in requests for sample in request.generations]
        accounts = [request.metrics() for request in requests]
        slowest = max(accounts, key=lambda account: account.total_s or 0.0, default=None)
        drafts = [account.speculation for account in accounts if account.speculation is not None]
        facts = {
            "model": self.model,
            "prompt_tokens": sum(len(job.prompt) for job in self.flow.jobs),
            "output_tokens": sum(len(sample.token_ids) for sample in samples),
            "cached_tokens": sum(account.num_cached_tokens for account in accounts),
            "queue_ms": _ms(None if slowest is None else slowest.queue_s),
            "ttft_ms": _ms(None if slowest is None else slowest.time_to_first_token_s),
            "finish_reasons": [
                sample.finish_reason.value for sample in samples if sample.finish_reason is not None
            ],
        }
        if drafts:
            facts["draft_n"] = sum(account.num_drafted for account in drafts)
            facts["draft_n_accepted"] = sum(account.num_accepted for account in drafts)
        return facts


def visit_of(request: Request) -> Visit:
    """The visit that a route serves."""
    return cast(Visit, request.scope["visit"])


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
