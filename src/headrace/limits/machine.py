"""Measures MachineRates: what this machine can do at most, by native loops (native/src/probe.h).

    peaks       register-only multiply-adds of one number format, per instruction-set level
    bandwidth   all threads read through one buffer of at least 8 × the last-level cache

Every figure is the best of several short bursts: a neighbour on the machine can only make a burst
slower. On a busy machine all of them are slow, so whoever compares a measurement with its limit
probes right before and after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.engine.config import Machine
from headrace.errors import CapacityError, NativeError, UsageError
from headrace.limits.rates import MachineRates
from headrace.native import core

if TYPE_CHECKING:
    from headrace.native._core import Probe

#: The buffer is this many times the last-level cache, …
CACHE_MULTIPLE = 8
#: … but at most this share of the free memory.
MEMORY_SHARE = 0.25
_CHUNK_BYTES = 1 << 20
#: Where the system does not tell.
_USUAL_CACHE_BYTES = 32 << 20

#: Operands whose sums stay ordinary numbers however long a loop runs.
_ONES_INT8 = np.ones(64, np.uint8)
_HALVES_BF16 = np.full(32, 0x3F00, np.uint16).view(np.uint8)
_HALVES_F32 = np.full(16, 0.5, np.float32).view(np.uint8)
OPERANDS: Mapping[str, npt.NDArray[np.uint8]] = {
    "int8": _ONES_INT8,
    "bf16": _HALVES_BF16,
    "f32": _HALVES_F32,
}


@dataclass(frozen=True, slots=True)
class Bursts:
    """How long to look: bursts of so many seconds, the best counts."""

    compute_s: float = 0.006
    num_compute: int = 3
    read_s: float = 0.02
    num_reads: int = 5


#: A quick probe's buffer is no larger than this, unless the cache is.
QUICK_BUFFER_BYTES = 512 << 20
_QUICK = Bursts(compute_s=0.004, num_reads=4)


class MachineProbe:
    """Worker threads and a buffer, kept so that probing takes a fraction of a second each time.

    num_threads: default all CPUs this process may use. isa: default HEADRACE_ISA, else the best.
    buffer_bytes: default as the module says. note: one sentence when the buffer had to be smaller.
    Raises UsageError for a bad parameter, CapacityError without memory, NativeError where the core
    does not run. One caller at a time.
    """

    def __init__(
        self,
        num_threads: int | None = None,
        isa: str | None = None,
        *,
        buffer_bytes: int | None = None,
    ) -> None:
        self.llc_bytes = last_level_cache_bytes()
        self.note: str | None = None
        if buffer_bytes is None:
            free = Machine.probe(os.environ).free_bytes
            buffer_bytes, self.note = buffer_size(self.llc_bytes, free)
        threads = len(os.sched_getaffinity(0)) if num_threads is None else num_threads
        try:
            self._probe: Probe = core().Probe(threads, isa, buffer_bytes)
        except (ValueError, TypeError) as error:
            raise UsageError(f"machine probe: {error}.") from error
        except MemoryError as error:
            raise CapacityError(
                f"machine probe: there is no memory for a buffer of {buffer_bytes >> 20} MiB."
            ) from error
        except RuntimeError as error:
            raise NativeError(f"{error}.") from error

    @property
    def isa(self) -> str:
        return str(self._probe.isa)

    @property
    def num_threads(self) -> int:
        return int(self._probe.threads)

    @property
    def buffer_bytes(self) -> int:
        return int(self._probe.buffer_bytes)

    def rates(self, bursts: Bursts = Bursts()) -> MachineRates:
        """All rates with all threads; 0.2 s with the default bursts."""
        peaks = {name: self.ops_per_s(name, bursts=bursts) for name in OPERANDS}
        return MachineRates(
            read_bytes_per_s=self.read_bytes_per_s(bursts=bursts),
            int8_ops_per_s=peaks["int8"],
            bf16_ops_per_s=peaks["bf16"],
            f32_ops_per_s=peaks["f32"],
            num_threads=self.num_threads,
            isa=self.isa,
            llc_bytes=self.llc_bytes,
        )

    def ops_per_s(
        self,
        number_format: str,
        *,
        workers: int | None = None,
        bursts: Bursts = Bursts(),
    ) -> float:
        """Operations per second of `workers` threads (default all); a multiply-add counts as two.

        number_format: "int8", "bf16" or "f32". Where the level has no dot product of that format,
        what its kernels use instead (docs/bench.md)."""
        operands = OPERANDS[number_format]

        def burst() -> tuple[float, float]:
            done, seconds, _ = self._probe.compute(
                number_format, operands, operands, workers, bursts.compute_s
            )
            return done, seconds

        return best_rate(burst, bursts.num_compute)

    def read_bytes_per_s(self, *, workers: int | None = None, bursts: Bursts = Bursts()) -> float:
        """Bytes per second that `workers` threads (default all) read together."""

        def burst() -> tuple[float, float]:
            done, seconds, _ = self._probe.read(workers, bursts.read_s)
            return done, seconds

        return best_rate(burst, bursts.num_reads)


def probe(num_threads: int | None = None, isa: str | None = None) -> MachineRates:
    """The rates of this machine, once (about 0.3 s with setting up); see MachineProbe."""
    return MachineProbe(num_threads, isa).rates()


def quick_rates(num_threads: int | None = None, isa: str | None = None) -> MachineRates:
    """The rates of this machine where a start must not take long: about 0.3 s of all CPUs with
    setting up, on most machines, and a buffer of at most QUICK_BUFFER_BYTES, or twice the
    last-level cache, for that time."""
    llc_bytes = last_level_cache_bytes()
    wanted, _ = buffer_size(llc_bytes, Machine.probe(os.environ).free_bytes)
    size = min(wanted, max(QUICK_BUFFER_BYTES, 2 * llc_bytes))
    return MachineProbe(num_threads, isa, buffer_bytes=size).rates(_QUICK)


def best_rate(burst: Callable[[], tuple[float, float]], count: int) -> float:
    """Best of `count` bursts that return (amount, seconds), after one that warms up."""
    burst()
    return max(done / seconds for done, seconds in (burst() for _ in range(count)))


# ---- sizes --------------------------------------------------------------------------------------


def buffer_size(llc_bytes: int, free_bytes: int | None) -> tuple[int, str | None]:
    """Bytes of the read buffer, whole MiB, and a note when it is smaller than it should be."""
    wanted = -(-CACHE_MULTIPLE * llc_bytes // _CHUNK_BYTES) * _CHUNK_BYTES
    if free_bytes is None or wanted <= free_bytes * MEMORY_SHARE:
        return wanted, None
    size = max(int(free_bytes * MEMORY_SHARE) // _CHUNK_BYTES, 1) * _CHUNK_BYTES
    return size, (
        f"The read buffer is {size >> 20} MiB instead of {wanted >> 20} MiB "
        f"({CACHE_MULTIPLE} × the last-level cache), because only {free_bytes >> 20} MiB are free: "
        f"the bandwidth may include reads from the cache."
    )


def last_level_cache_bytes(
    cpus: Sequence[int] | None = None, root: str = "/sys/devices/system/cpu"
) -> int:
    """Bytes of all last-level caches that these CPUs (default: those this process may use) can
    fill, each counted once; what sysconf says, or 32 MiB, where /sys does not tell."""
    caches: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if cpus is None else cpus:
        last = max(_caches(Path(root, f"cpu{cpu}", "cache")), default=None)
        if last is not None:
            _, shared, size = last
            caches[shared] = size
    if caches:
        return sum(caches.values())
    try:
        return max(os.sysconf("SC_LEVEL3_CACHE_SIZE"), 0) or _USUAL_CACHE_BYTES
    except (ValueError, OSError):
        return _USUAL_CACHE_BYTES


def _caches(directory: Path) -> list[tuple[int, str, int]]:
    """(level, CPUs that share it, bytes) of one CPU's data caches, as far as they can be read."""
    found = []
    for index in directory.glob("index*"):
        try:
            level, kind, shared, size = (
                (index / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "shared_cpu_list", "size")
            )
            factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[size[-1]]
            if kind != "Instruction":
                found.append((int(level), shared, int(size[:-1]) * factor))
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return found
