"""Every way of computing attention against float64. Knows no time and no memory."""

from __future__ import annotations

from headrace.lab.attention.problems import ways
from headrace.lab.lab import Lab
from headrace.lab.values import Check
from headrace.ops.kv import KVFormat

#: Lengths that are checked: one tile, an awkward one, several tiles.
CHECKED = (64, 203, 640, 1024)


def close_to_float64(lab: Lab, length: int) -> Check:
    """Every way's error from float64 is at most twice that of the naive way in the same format,
    plus a rounding of the result."""
    from headrace.lab.attention.cells import Problem, Way, attention, inputs, relative_error

    problem = Problem(length, 3, batch=2)
    qkv = inputs(problem)

    def error(way: Way) -> float:
        return relative_error(problem, qkv, attention(way, problem, qkv, lab.threads))

    passed, told = True, []
    for fmt, rounding in ((KVFormat.F32, 2.0**-24), (KVFormat.BF16, 2.0**-9)):
        plain = error(Way("naive", "naive", fmt))
        told.append(f"{fmt.value}: naive {plain:.1e}")
        for way in ways():
            if way.format is fmt and way.kind != "naive":
                own = error(way)
                passed &= own <= 2 * plain + rounding
                told.append(f"{way.kind} {own:.1e}")
    return Check(f"S = {length}: equal within rounding", passed, ", ".join(told))
