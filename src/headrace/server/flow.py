"""Flow: one HTTP request on the asyncio side, between the engine's results and the socket.

    deliver ─▶ bounded buffer ─▶ take ─▶ render ─▶ socket

A reader that is slower than the engine fills the buffer; then its jobs pause and the others do not
notice. Every flow ends exactly once: finished, failed, or cancelled with a reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.engine.outputs import Delta
from headrace.server.job import Job
from headrace.server.loop import EngineLoop


class Flow:
    """jobs: all of one HTTP request; choice index = job.first_index + delta.index.

    max_buffered: deltas that may wait before the jobs pause. Used on the asyncio thread only.
    """

    __slots__ = (
        "_buffer",
        "_engine",
        "_max_buffered",
        "_num_open",
        "_on_end",
        "_paused",
        "_waiter",
        "cancelled",
        "error",
        "jobs",
        "last_sent_s",
        "ping_due",
    )

    def __init__(self, engine: EngineLoop, jobs: Sequence[Job], max_buffered: int) -> None:
        self._engine = engine
        self.jobs = jobs
        self._max_buffered = max_buffered
        self._num_open = len(jobs)
        self._buffer: list[tuple[Job, Delta]] = []
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._on_end: list[Callable[[], None]] = []
        self.error: Exception | None = None
        self.cancelled: str | None = None
        self.last_sent_s = 0.0
        self.ping_due = False

    @property
    def done(self) -> bool:
        """Whether every job has ended; results may still wait to be taken."""
        return self._num_open == 0

    @property
    def waiting(self) -> bool:
        """Whether results wait to be taken."""
        return bool(self._buffer)

    # ---- results come in --------------------------------------------------------------------

    def push(self, job: Job, delta: Delta) -> None:
        """A result; the caller wakes the flow afterwards, once for all results of a step."""
        self._buffer.append((job, delta))
        if len(self._buffer) >= self._max_buffered and not self._paused:
            self._paused = True
            for each in self.jobs:
                self._engine.pause(each)

    def end_job(self, error: Exception | None = None) -> None:
        """One of the jobs has ended."""
        self._num_open -= 1
        if error is not None and self.error is None:
            self.error = error
        if not self._num_open:
            for function in self._on_end:
                function()

    def on_end(self, function: Callable[[], None]) -> None:
        """Calls a function when the last job has ended."""
        self._on_end.append(function)

    def ping(self) -> None:
        """Asks for a sign of life to be sent."""
        self.ping_due = True
        self.wake()

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # ---- the route takes them ---------------------------------------------------------------

    async def take(self) -> list[tuple[Job, Delta]]:
        """All results that have come; waits for some. [] at the end, or when a ping is due."""
        while not self._buffer and self._num_open and not self.ping_due:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        taken, self._buffer = self._buffer, []
        if self._paused:
            self._paused = False
            for job in self.jobs:
                self._engine.resume(job)
        return taken

    async def wait(self) -> None:
        """Until every job has ended."""
        while self._num_open:
            await self.take()
            self.ping_due = False

    def cancel(self, reason: str) -> None:
        """Ends what still runs, before the next step."""
        if self._num_open and self.cancelled is None:
            self.cancelled = reason
            for job in self.jobs:
                self._engine.abort(job, reason)
