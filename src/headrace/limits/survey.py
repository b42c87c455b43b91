"""A survey of the machine: peaks per instruction-set level and thread count, bandwidth per thread
count, within some seconds on any machine. What `headrace bench machine` prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.limits.machine import OPERANDS, Bursts, MachineProbe
from headrace.limits.rates import MachineRates
from headrace.native import core

#: Seconds for all peaks together, and for all bandwidths; setting up comes on top.
PEAK_BUDGET_S = 3.0
READ_BUDGET_S = 3.0
#: More thread counts than that are thinned out.
MAX_THREAD_COUNTS = 64
_LONGEST = Bursts(compute_s=0.01, num_compute=5, read_s=0.025, num_reads=8)
_SHORTEST_S = 0.001


@dataclass(frozen=True, slots=True)
class Survey:
    """rows: one per level and thread count, levels in the order of `isas`. The bandwidth of a
    thread count was measured once, on the best level, and stands in all its rows. notes: what a
    reader must know."""

    rows: tuple[MachineRates, ...]
    isas: tuple[str, ...]
    thread_counts: tuple[int, ...]
    llc_bytes: int
    buffer_bytes: int
    notes: tuple[str, ...] = ()

    def row(self, isa: str, num_threads: int) -> MachineRates:
        [found] = [r for r in self.rows if r.isa == isa and r.num_threads == num_threads]
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "llc_bytes": self.llc_bytes,
            "buffer_bytes": self.buffer_bytes,
            "notes": list(self.notes),
            "rows": [{"isa": r.isa, "threads": r.num_threads} | r.to_dict() for r in self.rows],
        }


def survey(
    max_threads: int | None = None,
    isas: Sequence[str] | None = None,
    *,
    on_step: Callable[[int, int], None] = lambda done, of: None,
) -> Survey:
    """Surveys 1 … max_threads threads (default: the CPUs this process may use) on the levels given
    (default: all of this machine). on_step: told how much is done. Raises like MachineProbe."""
    levels = tuple(core().available_isas() if isas is None else isas)
    most = len(os.sched_getaffinity(0)) if max_threads is None else max_threads
    reader = MachineProbe(most, levels[-1])
    counts = thread_counts(most)
    bursts = fitted_bursts(len(levels), len(counts))
    total, done = (len(levels) + 1) * len(counts), 0

    def step() -> None:
        nonlocal done
        done += 1
        on_step(done, total)

    bandwidth = {}
    for count in counts:
        bandwidth[count] = reader.read_bytes_per_s(workers=count, bursts=bursts)
        step()
    rows = []
    for level in levels:
        machine = MachineProbe(most, level, buffer_bytes=1 << 20)
        for count in counts:
            peaks = {f: machine.ops_per_s(f, workers=count, bursts=bursts) for f in OPERANDS}
            rows.append(
                MachineRates(
                    bandwidth[count], peaks["int8"], peaks["bf16"], peaks["f32"],
                    count, level, reader.llc_bytes,
                )
            )  # fmt: skip
            step()
    notes = [] if reader.note is None else [reader.note]
    if len(counts) < most:
        notes.append(f"{len(counts)} of {most} thread counts were measured.")
    if most > len(os.sched_getaffinity(0)):
        notes.append(
            f"More threads ({most}) than CPUs ({len(os.sched_getaffinity(0))}): "
            f"they take turns, so their figures say little."
        )
    return Survey(tuple(rows), levels, counts, reader.llc_bytes, reader.buffer_bytes, tuple(notes))


def thread_counts(most: int) -> tuple[int, ...]:
    """1 … most; on a very large machine evenly thinned out, with both ends."""
    step = -(-most // MAX_THREAD_COUNTS)
    return tuple(sorted({1, most, *range(step, most, step)}))


def fitted_bursts(num_levels: int, num_counts: int) -> Bursts:
    """Bursts such that the whole survey stays within its budget."""
    each = PEAK_BUDGET_S / (num_levels * num_counts * len(OPERANDS) * (_LONGEST.num_compute + 1))
    read = READ_BUDGET_S / (num_counts * (_LONGEST.num_reads + 1))
    return Bursts(
        compute_s=max(min(each, _LONGEST.compute_s), _SHORTEST_S),
        num_compute=_LONGEST.num_compute,
        read_s=max(min(read, _LONGEST.read_s), 2 * _SHORTEST_S),
        num_reads=_LONGEST.num_reads,
    )
