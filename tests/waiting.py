"""Waiting for what happens, and limits of time that a busy machine does not break."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], what: str, within_s: float = 60.0) -> T:
    """What the condition says once it is true; `what` is for the error if it never is."""
    end = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.005)
    return found


def comes_within(seconds: float, condition: Callable[[], object], *pids: int) -> bool:
    """Whether a condition comes true in so many seconds. Time in which a thread of the processes or
    of this one is ready to run and has no processor is not counted."""
    pids = (*pids, os.getpid())
    began, before = time.monotonic(), _delay_s(pids)
    while True:
        late = time.monotonic() - began - (_delay_s(pids) - before) > seconds
        if condition():
            return True
        if late:
            return False
        time.sleep(0.01)


def _delay_s(pids: tuple[int, ...]) -> float:
    """How long all threads together waited for a processor; 0 where Linux does not tell."""
    total_ns = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total_ns += int(path.read_text().split()[1])
            except (OSError, IndexError):  # the thread has ended
                continue
    return total_ns / 1e9
