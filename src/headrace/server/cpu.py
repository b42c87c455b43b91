"""CPU seconds of this process's Python threads: where the price of serving goes. Linux only; {} or
0.0 elsewhere."""

from __future__ import annotations

import threading


def thread_cpu_s(native_id: int | None) -> float:
    """CPU seconds that one thread of this process has used."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class OtherThreads:
    """CPU seconds of all Python threads but a few, never falling: what ended threads used is
    kept."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def cpu_s(self, without: set[int | None]) -> float:
        """without: native ids of threads that are counted elsewhere."""
        for thread in threading.enumerate():
            native_id = thread.native_id
            if native_id is not None and native_id not in without:
                used = thread_cpu_s(native_id)
                self._seen[native_id] = max(used, self._seen.get(native_id, 0.0))
        return sum(self._seen.values())
