"""Which ways are compared at which lengths, and the least that one must cost over another.

cells.py, which computes, imports torch: it is imported when a run needs it, never before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lab.lab import Lab
from headrace.limits.rates import MachineRates
from headrace.ops.counts import visible_pairs
from headrace.ops.kv import KVFormat

if TYPE_CHECKING:
    from headrace.lab.attention.cells import Problem, Way

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
#: Growth is fitted from here on: below, fixed costs weigh.
FIT_FROM = 1024
#: Where times of the ways are compared, and memory at the longest.
AT = 4096
#: Batch 4, 12 heads, 2,048 positions, two bytes: what people are told naive and tiled hold.
TOLD = (4, 12, 2048)
_HEADS_QUICK, _HEADS = 4, 12
#: (name, kind, format), see cells.py.
_WAYS = (
    ("naive", "naive", KVFormat.F32),
    ("tiled", "tiled", KVFormat.F32),
    ("SDPA", "sdpa", KVFormat.F32),
    ("tiled, bf16 KV", "tiled", KVFormat.BF16),
    ("SDPA, bf16", "sdpa", KVFormat.BF16),
)


def ways() -> list[Way]:
    from headrace.lab.attention.cells import Way

    return [Way(*fields) for fields in _WAYS]


def told_ways() -> tuple[Way, Way]:
    from headrace.lab.attention.cells import Way

    naive = Way("naive, bf16", "naive", KVFormat.BF16)
    return naive, Way("tiled, bf16 KV", "tiled", KVFormat.BF16)


def new_problem(length: int, heads: int, batch: int = 1) -> Problem:
    from headrace.lab.attention.cells import Problem

    return Problem(length, heads, batch=batch)


def problem_of(lab: Lab, length: int) -> Problem:
    return new_problem(length, _HEADS_QUICK if lab.quick else _HEADS)


def least_ratio(problem: Problem, rates: MachineRates) -> float:
    """Least time of naive over that of tiled attention: op after op, each at the machine's rates.
    The same peak for both, so that no kernel's choice moves it."""
    pairs = problem.batch * problem.heads * visible_pairs(problem.length, problem.length, None)
    tiled = 4 * pairs * problem.dim / rates.f32_ops_per_s
    traffic = 4 * problem.matrix_bytes(4) / rates.read_bytes_per_s
    return (2 * tiled + traffic) / tiled
