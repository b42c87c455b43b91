"""Sends jobs as a closed loop (so many at a time) or an open one (each when it is due), and keeps
a timeline of each.

An open loop does not wait for answers: a slow server gets its next request on time all the same,
and latency is also told from the time a request was due (no coordinated omission).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.bench.serve.client import Client
from headrace.bench.serve.failures import Failure, RequestFailed, bad_status
from headrace.bench.serve.http1 import ResponseParser
from headrace.bench.serve.jobs import Job, Negotiation
from headrace.bench.serve.sse import SSEParser
from headrace.bench.serve.timeline import Record, RequestTimeline, error_message_of

_MAX_ERROR_BYTES = 64 << 10


class _Stream:
    """One streamed answer: bytes → events → timeline (an `Exchange`)."""

    def __init__(self, timeline: RequestTimeline) -> None:
        self._timeline = timeline
        self._sse = SSEParser()
        self._refusal = bytearray()
        self._streams: bool | None = None

    def written(self, now_ns: int) -> None:
        self._timeline.started(now_ns)
        self._sse = SSEParser()
        self._refusal.clear()
        self._streams = None

    def body(self, now_ns: int, response: ResponseParser, piece: bytes) -> bool:
        if self._streams is None:
            kind = response.headers.get("content-type", "")
            self._streams = (
                response.status == 200 and "text/event-stream" in kind and not _coding(response)
            )
        if not self._streams:
            self._refusal += piece
            return len(self._refusal) > _MAX_ERROR_BYTES
        for data in self._sse.feed(piece):
            self._timeline.event(now_ns, data)
        return self._timeline.done and response.until_close

    def check(self, response: ResponseParser) -> None:
        """Raises RequestFailed for an answer that is not a stream."""
        if response.status != 200:
            raise bad_status(response.status, error_message_of(bytes(self._refusal)))
        if self._streams is False:
            if coding := _coding(response):
                raise RequestFailed(Failure.NOT_STREAMED, f"content-encoding {coding[:60]}")
            kind = response.headers.get("content-type", "none")
            raise RequestFailed(Failure.NOT_STREAMED, f"content-type {kind[:60]}")


def _coding(response: ResponseParser) -> str:
    """How the body is compressed, though we ask for none; "" when it is not."""
    coding = response.headers.get("content-encoding", "")
    return "" if coding.lower() == "identity" else coding


@dataclass(slots=True)
class Progress:
    """Where a run stands, for a person who waits. started: written at least once."""

    total: int
    started: int = 0
    running: int = 0
    most_running: int = 0
    failed: int = 0
    records: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class Driver:
    """Sends jobs to one endpoint through one client."""

    client: Client
    path: str
    negotiation: Negotiation
    timeout_s: float

    async def run(
        self, jobs: Sequence[Job], max_concurrency: int | None, progress: Progress
    ) -> None:
        """Every job once, into progress.records in the order in which they ended. When it is
        cancelled, answers that are still open are dropped, and those that ended stay."""
        start_ns = self.client.clock()
        open_loop = any(job.due_s is not None for job in jobs)
        async with asyncio.TaskGroup() as group:
            if open_loop:
                gate = asyncio.Semaphore(max_concurrency) if max_concurrency else None
                group.create_task(self._dispatch(group, jobs, start_ns, gate, progress))
            else:
                waiting = iter(jobs)
                for _ in range(min(max_concurrency or len(jobs), len(jobs))):
                    group.create_task(self._one_after_another(waiting, progress))

    async def _one_after_another(self, waiting: Iterator[Job], progress: Progress) -> None:
        for job in waiting:
            await self._one(job, None, progress)

    async def _dispatch(
        self, group: asyncio.TaskGroup, jobs: Sequence[Job], start_ns: int,
        gate: asyncio.Semaphore | None, progress: Progress,
    ) -> None:  # fmt: skip
        for job in sorted(jobs, key=lambda job: job.due_s or 0.0):
            due_ns = start_ns + round((job.due_s or 0.0) * 1e9)
            if (wait_ns := due_ns - self.client.clock()) > 0:
                await asyncio.sleep(wait_ns / 1e9)
            group.create_task(self._when_free(job, due_ns, gate, progress))

    async def _when_free(
        self, job: Job, due_ns: int, gate: asyncio.Semaphore | None, progress: Progress
    ) -> None:
        if gate is None:
            await self._one(job, due_ns, progress)
        else:
            async with gate:
                await self._one(job, due_ns, progress)

    async def _one(self, job: Job, due_ns: int | None, progress: Progress) -> None:
        timeline = RequestTimeline(job.index, job.max_tokens, job.num_prompt, due_ns)
        progress.started += 1
        progress.running += 1
        progress.most_running = max(progress.most_running, progress.running)
        timeline.started(self.client.clock())
        try:
            await self._send(job, timeline)
            timeline.ended()
        except RequestFailed as failure:
            timeline.failed(self.client.clock(), failure)
            progress.failed += 1
        finally:
            progress.running -= 1
        progress.records.append(timeline.record())

    async def _send(self, job: Job, timeline: RequestTimeline) -> None:
        """Sends, and again with a smaller usage option where the server refuses the one it got."""
        while True:
            option = self.negotiation.option
            request = self.client.target.request("POST", self.path, self.negotiation.whole(job))
            stream = _Stream(timeline)
            response = await self.client.send(request, stream, self.timeout_s)
            try:
                stream.check(response)
            except RequestFailed as failure:
                refused = response.status in (400, 422)
                if refused and self.negotiation.lower(option, failure.detail):
                    continue
                raise
            return
