"""Answers on the wire: a stream of events, or one body; both notice when the client leaves.

results ─ take ─ render ─ send         one coroutine per request
receive ─ disconnect ─ cancel          one more, which only listens
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.engine.generation import is_request_fault
from headrace.errors import HeadraceError
from headrace.server.errors import ApiError, api_error, invalid
from headrace.server.flow import Flow
from headrace.server.job import Job
from headrace.server.render.answer import PING, Renderer

_LOG = logging.getLogger("headrace.server")
CLIENT_LEFT = "the client left"
DEADLINE = "its time is over"
SHUTDOWN = "the server is shutting down"
#: Parts (see num_parts) that are written at once; more are written in a thread, some µs each.
MAX_PARTS = 1000
#: Parts of the frame around a job's own.
PARTS_PER_JOB = 32


class ClientLeft(Exception):
    """Nobody is there to answer."""


class StreamAnswer(Response):
    """A server-sent event stream of a flow's results, from prepared bytes."""

    def __init__(
        self, flow: Flow, renderer: Renderer, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers=headers)
        self._flow = flow
        self._renderer = renderer
        self._is_wordy = num_parts(flow.jobs, 1) > MAX_PARTS
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        flow, visit = self._flow, scope["visit"]
        async with _watched(flow, receive):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            flow.last_sent_s = time.monotonic()  # from here on silence is counted
            try:
                last = await self._results(send)
                problem = problem_of(flow)
            except Exception:
                _LOG.exception("a stream failed in a way it should not",
                               extra={"request_id": visit.name})  # fmt: skip
                problem = ApiError(500, "Something went wrong inside the server; its log says so.")
            if problem is not None:
                visit.problem = problem.code or problem.kind
                last = b"data: " + problem.to_bytes() + b"\n\n"
            elif flow.cancelled is not None:
                return  # the client left
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _results(self, send: Send) -> bytes:
        """Sends all results as they come; what is to be sent last."""
        flow = self._flow
        await _send(flow, send, self._renderer.start())
        while not (await self._pass_on(send)):
            pass
        whole = flow.cancelled is None and flow.error is None
        return self._renderer.end(flow.jobs) if whole else b""

    async def _pass_on(self, send: Send) -> bool:
        """Sends what has come; true when that was all."""
        flow, chunk = self._flow, self._renderer.chunk
        taken = await flow.take()
        if taken:
            good = [pair for pair in taken if pair[1].finish_reason not in ("abort", "error")]
            if self._is_wordy:
                events = await asyncio.to_thread(lambda: [chunk(*pair) for pair in good])
            else:
                events = [chunk(job, delta) for job, delta in good]
            await _send(flow, send, events[0] if len(events) == 1 else b"".join(events))
        elif flow.ping_due:
            await _send(flow, send, PING)
        flow.ping_due = False
        return flow.done and not flow.waiting


async def whole_answer(
    flow: Flow, renderer: Renderer, receive: Receive, headers: Mapping[str, str] | None = None
) -> Response:
    """Waits for the end. Raises ApiError for a request that failed, ClientLeft."""
    async with _watched(flow, receive):
        await flow.wait()
    problem = problem_of(flow)
    if problem is not None:
        raise problem
    if flow.cancelled is not None:
        raise ClientLeft
    if num_parts(flow.jobs) <= MAX_PARTS:
        content = renderer.whole(flow.jobs)
    else:
        content = await asyncio.to_thread(renderer.whole, flow.jobs)
    return Response(content, media_type="application/json", headers=headers)


def num_parts(jobs: Sequence[Job], num_tokens: int | None = None) -> int:
    """About how many entries of logprobs and traces there are to write. num_tokens: of every
    sample; None = all that they have."""
    return sum(PARTS_PER_JOB + _num_parts(job, num_tokens) for job in jobs)


def _num_parts(job: Job, num_tokens: int | None) -> int:
    params = job.params
    each = params.trace * len(params.stages)
    if params.logprobs is not None:
        each += 1 + params.logprobs
    if num_tokens is None:
        generations = () if job.request is None else job.request.generations
        parts = each * sum(len(generation.token_ids) for generation in generations)
    else:
        parts = each * num_tokens * params.n
    if params.prompt_logprobs is not None:
        parts += len(job.prompt) * (1 + params.prompt_logprobs)
    return parts


def problem_of(flow: Flow) -> ApiError | None:
    """Why a flow that has ended has no good answer; None when it has one, or nobody waits."""
    if flow.cancelled == DEADLINE:
        return ApiError(408, "The request's time limit has passed.", code="deadline_exceeded")
    if flow.cancelled == SHUTDOWN:
        return ApiError(503, "The server is shutting down; the request was ended.")
    if flow.error is not None:
        error = flow.error
        if isinstance(error, HeadraceError):
            return api_error(error)
        return ApiError(500, "The engine failed; the server's log says more.")
    for job in flow.jobs:
        for generation in job.request.generations if job.request is not None else ():
            if generation.error is not None and generation.finish_reason is not None:
                if is_request_fault(generation.error):
                    return invalid(generation.error)
                if generation.finish_reason.value == "error":
                    what = generation.error.partition(":")[0]  # the log has the inner trouble
                    return ApiError(500, what if what.endswith(".") else f"{what}.")
    return None


async def _send(flow: Flow, send: Send, body: bytes) -> None:
    """Waits while the client's socket takes no more; the ticker ends those that wait too long."""
    if body:
        flow.last_sent_s = time.monotonic()
        await send({"type": "http.response.body", "body": body, "more_body": True})


@contextlib.asynccontextmanager
async def _watched(flow: Flow, receive: Receive) -> AsyncIterator[None]:
    """Cancels the flow when the client leaves, and when this coroutine ends before it."""
    watcher = asyncio.create_task(_watch(flow, receive))
    try:
        yield
    finally:
        watcher.cancel()
        flow.cancel(CLIENT_LEFT)


async def _watch(flow: Flow, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    flow.cancel(CLIENT_LEFT)
