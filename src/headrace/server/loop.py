"""EngineLoop: the one thread that owns the engine. Commands go in, results come out per step.

    asyncio thread                            engine thread
    submit, abort, pause, resume ──▶ deque ──▶ between two steps
    deliver(results of one step) ◀── call_soon_threadsafe ◀── after every step, once

A step may take long; it waits for nothing and nobody waits for it here. The thread ends only when
asked to, or when the engine itself breaks (then every request gets an error and `alive` is false).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.outputs import Delta
from headrace.errors import HeadraceError
from headrace.server.job import Job

_LOG = logging.getLogger("headrace.server")
Command = Callable[[], None]


@dataclass(slots=True)
class StepResults:
    """What one step left for the asyncio side. deltas: for jobs that stream; finished: jobs that
    ended, after their last delta; failed: jobs that the engine did not take."""

    deltas: list[tuple[Job, Delta]] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, Exception]] = field(default_factory=list)
    num_tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.deltas or self.finished or self.failed)


class EngineLoop:
    """Drives one engine. `deliver` is called on the asyncio loop with the results of each step.

    Read from any thread: num_running, num_waiting, alive, busy_for_s, python_s.
    """

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[StepResults], None],
    ) -> None:
        self.engine = engine
        self._loop = loop
        self._deliver = deliver
        self._commands: deque[Command] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._jobs: dict[int, Job] = {}
        self._results = StepResults()
        self._step_began_s: float | None = None
        #: CPU seconds of the engine's thread outside of steps: part of the price of serving.
        self.outside_cpu_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- asyncio side -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job, already checked, before the next step."""
        self._put(lambda: self._add(job))

    def abort(self, job: Job, reason: str) -> None:
        """Ends a job before the next step; its last results still come."""
        self._put(lambda: self._abort(job, reason))

    def pause(self, job: Job) -> None:
        """Keeps a job out of the steps until `resume`."""
        self._put(lambda: self._of(job, self.engine.pause))

    def resume(self, job: Job) -> None:
        self._put(lambda: self._of(job, self.engine.resume))

    def call(self, function: Callable[[Engine], None]) -> None:
        """Runs a function between two steps, on the engine's thread."""
        self._put(lambda: function(self.engine))

    def stop(self) -> None:
        """Ends the thread after the step in progress, and waits for it."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def busy_for_s(self) -> float:
        """How long the step in progress has been running; 0 between steps."""
        began = self._step_began_s
        return 0.0 if began is None else time.monotonic() - began

    def _put(self, command: Command) -> None:
        self._commands.append(command)
        self._wake.set()

    # ---- engine thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                began = time.thread_time()
                self._obey()
                busy = self.engine.has_work
                self.outside_cpu_s += time.thread_time() - began
                if busy:
                    self._step()
                else:
                    self._wake.wait()
                    self._wake.clear()
        except Exception as error:
            _LOG.exception("the engine broke; no request can be served any more")
            self._break(error)

    def _obey(self) -> None:
        self._wake.clear()
        while self._commands:
            self._commands.popleft()()
        self._publish()

    def _step(self) -> None:
        self._step_began_s = time.monotonic()
        deltas = self.engine.step()
        self._step_began_s = None
        began = time.thread_time()
        self._take(deltas)
        self._publish()
        self.outside_cpu_s += time.thread_time() - began

    def _add(self, job: Job) -> None:
        try:
            request = job.add_to(self.engine)
        except (HeadraceError, ValueError) as error:
            self._results.failed.append((job, error))
            return
        job.request = request
        self._jobs[request.request_id] = job

    def _abort(self, job: Job, reason: str) -> None:
        job.cancelled = reason
        if job.request is not None:
            self._take(self.engine.abort(job.request, reason))

    def _of(self, job: Job, action: Callable[[Request], None]) -> None:
        if job.request is not None and not job.request.finished:
            action(job.request)

    def _take(self, deltas: list[Delta]) -> None:
        results, jobs = self._results, self._jobs
        results.num_tokens += len(deltas)
        for delta in deltas:
            job = jobs[delta.request_id]
            if job.streams:
                results.deltas.append((job, delta))
            if delta.finish_reason is not None:
                assert job.request is not None
                if job.request.finished:
                    self._forget(job.request)

    def _forget(self, request: Request) -> None:
        self._results.finished.append(self._jobs.pop(request.request_id))

    def _publish(self) -> None:
        results = self._results
        if results:
            self._results = StepResults()
            self._loop.call_soon_threadsafe(self._deliver, results)

    def _break(self, error: Exception) -> None:
        results = StepResults(failed=[(job, error) for job in self._jobs.values()])
        self._jobs.clear()
        self._loop.call_soon_threadsafe(self._deliver, results)
