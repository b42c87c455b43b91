"""What the load generator itself costs, and whether it was in the way.

A thread asks the event loop to note the time, 50 times a second, each time when it is due: the
delay until the loop does so is how late the stamp of a chunk that came at that instant would have
been. It counts from the due time, so a probe that could not even start is as late as it was.
"""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from dataclasses import dataclass

from headrace.bench.serve.client import Effort
from headrace.bench.serve.metrics import Distribution, distribution

_INTERVAL_NS = 20_000_000


class LoopProbe:
    """A context manager inside a running loop. lags_ns: one per probe."""

    def __init__(self) -> None:
        self.lags_ns = array("q")
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._probe, name="loop-probe", daemon=True)

    def __enter__(self) -> LoopProbe:
        self._cpu_s = time.process_time()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._cpu_s = time.process_time() - self._cpu_s

    @property
    def cpu_s(self) -> float:
        """CPU time of this process while the probe was open; valid afterwards."""
        return self._cpu_s

    def _probe(self) -> None:
        due = time.monotonic_ns()
        while not self._stop.is_set():
            due += _INTERVAL_NS
            if (wait_ns := due - time.monotonic_ns()) > 0:
                time.sleep(wait_ns / 1e9)
            try:
                self._loop.call_soon_threadsafe(self._note, due)
            except RuntimeError:  # the loop has closed
                return

    def _note(self, due_ns: int) -> None:
        self.lags_ns.append(time.monotonic_ns() - due_ns)


@dataclass(frozen=True, slots=True)
class Overhead:
    """cpu_share: of one core. us_per_chunk: CPU time of the whole process per read, with system
    calls; handling_us: the part inside our own callbacks. lag_ms: of the event loop. send_delay_ms:
    from due to written, of an open loop."""

    cpu_s: float
    cpu_share: float
    reads: int
    us_per_chunk: float
    handling_us: float
    lag_ms: Distribution | None
    send_delay_ms: Distribution | None
    connections: int
    connect_ms: float
    resent: int
    loop: str

    def warnings(self, itl_ms: float | None) -> list[str]:
        """What makes the figures doubtful. itl_ms: the median that they must resolve."""
        found = []
        if self.cpu_share > 0.8:
            found.append(
                f"the load generator used {100 * self.cpu_share:.0f} % of a core: it was the "
                f"bottleneck, and latencies are too long"
            )
        # A tenth of a gap, but nobody needs better than 2 ms.
        enough_ms = max(2.0, 0.1 * (itl_ms or 0.0))
        if self.lag_ms is not None and self.lag_ms.at(95) > enough_ms:
            found.append(
                f"the load generator noticed chunks {self.lag_ms.at(95):.1f} ms late in 5 % of "
                f"cases: give it a core of its own, or fewer streams"
            )
        if self.send_delay_ms is not None and self.send_delay_ms.at(99) > 10:
            found.append(
                f"requests left up to {self.send_delay_ms.max:.0f} ms after they were due; "
                f"latencies from the due time (ttft_due, e2el_due) contain that"
            )
        return found


def overhead(
    probe: LoopProbe, effort: Effort, duration_s: float, send_delays_ns: list[int]
) -> Overhead:
    """After the run."""
    reads = max(effort.reads, 1)
    return Overhead(
        cpu_s=probe.cpu_s,
        cpu_share=probe.cpu_s / duration_s if duration_s > 0 else 0.0,
        reads=effort.reads,
        us_per_chunk=1e6 * probe.cpu_s / reads,
        handling_us=effort.handling_ns / reads / 1e3,
        lag_ms=distribution((ns / 1e6 for ns in probe.lags_ns), (50, 95, 99)),
        send_delay_ms=distribution((ns / 1e6 for ns in send_delays_ns), (50, 95, 99)),
        connections=effort.connections,
        connect_ms=effort.connecting_ns / max(effort.connections, 1) / 1e6,
        resent=effort.resent,
        loop="",
    )
