"""EngineLoop: the one thread that owns the engine. Commands go in, results come out per step.

    asyncio thread                            engine thread
    submit, abort, pause, resume ──▶ deque ──▶ between two steps
    deliver(results of one step) ◀── call_soon_threadsafe ◀── after every step, once

A step may take long; it waits for nothing and nobody waits for it here. The thread ends only when
asked to, or when the engine itself breaks (then every request gets an error and `alive` is false).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.engine.core import Engine
from headrace.engine.generation import Request
from headrace.engine.outputs import Delta
from headrace.errors import HeadraceError
from headrace.server.job import Job
from headrace.server.meter import StepMeter

_LOG = logging.getLogger("headrace.server")
Command = Callable[[], None]
T = TypeVar("T")


@dataclass(slots=True)
class StepResults:
    """What one step left for the asyncio side. deltas: for jobs that stream; finished: jobs that
    ended, after their last delta; failed: jobs that the engine did not take."""

    deltas: list[tuple[Job, Delta]] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)
    failed: list[tuple[Job, Exception]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.deltas or self.finished or self.failed)


class EngineLoop:
    """Drives one engine. `deliver` is called on the asyncio loop with the results of each step.

    Read from any thread: meter, alive, busy_for_s, num_entering, outside_cpu_s, step_cpu_s.
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
        self._broken: Exception | None = None
        self._jobs: dict[int, Job] = {}
        self._results = StepResults()
        self._step_began_s: float | None = None
        self.meter = StepMeter()
        self._num_submitted = self._num_entered = 0  # jobs; each written by one thread
        #: CPU seconds of the engine's thread outside of steps (part of the price of serving) and
        #: inside of them.
        self.outside_cpu_s = self.step_cpu_s = 0.0
        self._lapped_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- asyncio side -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queues jobs, already checked, before the next step."""
        self._num_submitted += len(jobs)
        self._put(lambda: self._add_all(jobs))

    def abort(self, job: Job, reason: str) -> None:
        """Ends a job before the next step; its last results still come."""
        self._put(lambda: self._abort(job, reason))

    def pause(self, job: Job) -> None:
        """Keeps a job out of the steps until `resume`."""
        self._put(lambda: self._of(job, self.engine.pause))

    def resume(self, job: Job) -> None:
        self._put(lambda: self._of(job, self.engine.resume))

    def ask(self, function: Callable[[Engine], T]) -> asyncio.Future[T]:
        """Runs a function between two steps, on the engine's thread: what it returns or raises."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            told: tuple[Callable[..., None], object]
            try:
                told = answer.set_result, function(self.engine)
            except Exception as error:
                told = answer.set_exception, error
            self._loop.call_soon_threadsafe(_tell, answer, *told)

        self._put(run)
        return answer

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
    def is_broken(self) -> bool:
        """Whether the engine failed as a whole, so that what it holds may be unsound."""
        return self._broken is not None

    @property
    def native_id(self) -> int | None:
        """The operating system's name of the engine's thread."""
        return self._thread.native_id

    @property
    def busy_for_s(self) -> float:
        """How long the step in progress has been running; 0 between steps."""
        began = self._step_began_s
        return 0.0 if began is None else time.monotonic() - began

    @property
    def num_entering(self) -> int:
        """Jobs that were submitted and that the engine has not yet seen."""
        return max(self._num_submitted - self._num_entered, 0)

    def _put(self, command: Command) -> None:
        self._commands.append(command)
        self._wake.set()
        if self._broken is not None:
            self._refuse()

    # ---- engine thread ----------------------------------------------------------------------

    def _run(self) -> None:
        self._lapped_s = time.thread_time()
        try:
            while not self._stopping:
                self._obey()
                busy = self.engine.has_work
                self.outside_cpu_s += self._lap()
                if busy:
                    self._step()
                else:
                    self._wake.wait()
                    self._wake.clear()
        except Exception as error:
            _LOG.exception("the engine broke; no request can be served any more")
            self._break(error)

    def _lap(self) -> float:
        """CPU seconds of this thread since the last call."""
        before, self._lapped_s = self._lapped_s, time.thread_time()
        return self._lapped_s - before

    def _obey(self) -> None:
        self._wake.clear()
        while self._commands:
            self._commands.popleft()()
        self._publish()

    def _step(self) -> None:
        self._step_began_s = time.monotonic()
        deltas = self.engine.step()
        self._step_began_s = None
        self.step_cpu_s += self._lap()
        self._take(deltas)
        self._publish()

    def _add_all(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._add(job)

    def _add(self, job: Job) -> None:
        self._num_entered += 1
        if self._broken is not None:
            self._results.failed.append((job, self._broken))
            return
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
        results, jobs, meter = self._results, self._jobs, self.meter
        meter.begin(time.monotonic())
        ended: dict[int, Job] = {}
        for delta in deltas:
            job = jobs[delta.request_id]
            if delta.token_ids:
                meter.tokens(job, delta.index, len(delta.token_ids))
            if job.streams:
                results.deltas.append((job, delta))
            if delta.finish_reason is not None:
                assert job.request is not None
                if job.request.finished:  # its other samples may still follow here
                    ended[delta.request_id] = job
        meter.end()
        for request_id, job in ended.items():
            self._forget(request_id, job)

    def _forget(self, request_id: int, job: Job) -> None:
        if not job.prompt_counted and job.params.max_tokens == 0 and job.cancelled is None:
            self.meter.prompt(job)  # all there was to compute
        del self._jobs[request_id]
        if job.at_end is not None and job.ended_well:
            try:
                job.at_end(self.engine)
            except HeadraceError as error:
                self._results.failed.append((job, error))
                return
        self._results.finished.append(job)

    def _publish(self) -> None:
        results = self._results
        if results:
            self._results = StepResults()
            self._loop.call_soon_threadsafe(self._deliver, results)

    def _break(self, error: Exception) -> None:
        """Nobody waits for ever: all that is here, and all that still comes, fails."""
        self._results.failed += [(job, error) for job in self._jobs.values()]
        self._jobs.clear()
        self._publish()
        self._broken = error  # from now on the other thread owns everything here
        self._loop.call_soon_threadsafe(self._refuse)

    def _refuse(self) -> None:
        """Fails what was submitted to a broken engine; on the asyncio thread."""
        while self._commands:
            with contextlib.suppress(Exception):
                self._commands.popleft()()
        self._publish()


def _tell(answer: asyncio.Future[T], function: Callable[..., None], value: object) -> None:
    if not answer.done():  # nobody waits for it any more
        function(value)
