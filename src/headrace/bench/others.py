"""How much of the CPUs went to anyone but the engine that is being measured."""

from __future__ import annotations

import os
import time

from headrace.bench.host import busy_cpu_s
from headrace.bench.peers.process import WorkerProcess


class Others:
    """While it is open: how much of the CPUs went to anyone but one worker (Linux; elsewhere 0)."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self.share = 0.0

    def __enter__(self) -> Others:
        self._begin = (time.monotonic(), busy_cpu_s(), self._worker.cpu_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        begin, busy, own = self._begin
        taken = (busy_cpu_s() - busy) - (self._worker.cpu_seconds() - own)
        whole = (time.monotonic() - begin) * (os.cpu_count() or 1)
        # The system counts in ticks of 10 ms; a few of them are no disturbance.
        self.share = max(taken - 0.03, 0.0) / whole if whole > 0 else 0.0
