"""What memory something really takes: the kernel's own count, in a process of its own.

A process that has done other things holds freed memory that it takes again without the count
moving. So each measurement gets a fresh process, forked from a server that has imported what is
needed and done nothing else.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, TypeVar

from headrace.errors import CapacityError

P = ParamSpec("P")
T = TypeVar("T")

#: The counters behind `peak_of` are kept per CPU and may lag by so much.
RESOLUTION_BYTES = 1 << 20
_STATUS = "/proc/self/status"


@dataclass(frozen=True, slots=True)
class Peak:
    """Bytes that a call took on top of what was there before it. peak: at its highest; kept: still
    held when it returned."""

    peak: int
    kept: int


def anonymous_bytes() -> int:
    """Anonymous memory of this process that is in RAM: what it wrote, no files. Counted page by
    page, so exact."""
    return _field("/proc/self/smaps_rollup", "Anonymous")


def peak_of(call: Callable[[], object]) -> tuple[Peak, object]:
    """Runs call() and tells the memory that it took, files included (VmHWM), and its result. Resets
    this process's high-water mark. To be trusted in a fresh process only."""
    _give_back()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the high-water mark of resident memory: man 5 proc
    before = _field(_STATUS, "VmRSS")
    result = call()
    peak, kept = _field(_STATUS, "VmHWM"), _field(_STATUS, "VmRSS")
    return Peak(max(peak - before, 0), max(kept - before, 0)), result


def _give_back() -> None:
    """Freed memory that the C library keeps goes back to the system: else it would be taken again
    without being counted. Does nothing where the library cannot."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _field(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise CapacityError(f"{path} has no {name}; memory is measured on Linux only.")


class FreshProcesses:
    """Runs calls one by one, each in a process of its own. modules: imported once, beforehand, as
    far as no earlier user of the same kind has started the server. Functions, arguments and results
    must be picklable."""

    def __init__(self, modules: Sequence[str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(modules))
        self._executor = ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1)

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """function(*args) from such a process. Raises what it raises, and CapacityError where the
        process was ended from outside, which is what happens when memory runs out."""
        try:
            return self._executor.submit(function, *args, **kwargs).result()
        except BrokenProcessPool:
            raise CapacityError(
                f"The process that ran {function.__name__} was ended from outside; as a rule there "
                f"was not enough memory."
            ) from None

    def __enter__(self) -> FreshProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.shutdown(cancel_futures=True)
