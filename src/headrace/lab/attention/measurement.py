"""All cells in turns, and the memory that people are told of. Knows not what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from headrace.lab.attention.problems import (
    LENGTHS,
    TOLD,
    new_problem,
    problem_of,
    told_ways,
    ways,
)
from headrace.lab.lab import Lab
from headrace.lab.parts.memory import FreshProcesses
from headrace.lab.statistics import exact
from headrace.lab.values import Findings, Table


@dataclass(slots=True)
class Cells:
    """One way at one length, by round: median seconds of a call, highest bytes beside the inputs,
    error from float64."""

    seconds: list[float] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)


#: By way and length; without those that memory was too short for.
CellsByWay = Mapping[str, Mapping[int, Cells]]


def measure_cells(lab: Lab, fresh: FreshProcesses, rounds: int) -> CellsByWay:
    """All cells in every round, short ones first, each in a process of its own: so that a slow
    minute hits all of them, and what one process was given (pages, a core) is drawn anew."""
    from headrace.lab.attention.cells import run_cell

    found: dict[str, dict[int, Cells]] = {way.name: {} for way in ways()}
    missing = set[tuple[str, int]]()
    work = float(rounds * sum(s * s for s in LENGTHS))
    done = 0.0
    for _ in range(rounds):
        for length in LENGTHS:
            for way in ways():
                lab.tell(f"{way.name}, S = {length}", done / work)
                cell = run_cell(fresh, way, problem_of(lab, length), threads=lab.threads)
                if cell is None:
                    missing.add((way.name, length))
                    continue
                cells = found[way.name].setdefault(length, Cells())
                cells.seconds.append(median(cell.seconds))
                cells.peaks.append(float(cell.peak_bytes))
                cells.errors.append(cell.error)
            done += length * length
    return {
        name: {s: cells for s, cells in own.items() if (name, s) not in missing}
        for name, own in found.items()
    }


def measure_told(lab: Lab, fresh: FreshProcesses, found: Findings) -> None:
    from headrace.lab.attention.cells import run_cell

    batch, heads, length = TOLD
    problem = new_problem(length, heads, batch)
    rows: list[list[str | float | int | None]] = []
    held = {}
    for key, way in zip(("told_naive", "told_tiled"), told_ways(), strict=True):
        cell = run_cell(fresh, way, problem, threads=lab.threads)
        expected = problem.peak_bytes(way) + problem.input_bytes(way)
        if cell is None:
            found.notes.append(f"{way.name}: left out, there is not enough free memory for it.")
            continue
        held[key] = (cell.peak_bytes + problem.input_bytes(way)) / 1e6
        found.measured[key] = exact(held[key], "one call in a fresh process")
        rows.append([way.name, round(expected / 1e6), round(held[key])])
    found.tables.append(
        Table(
            "held",
            ["attention", "predicted MB", "measured MB"],
            rows,
            f"Batch {batch}, {heads} heads of 64, S = {length}, with q, k, v and the result. "
            f"People are told 800 and 60 MB, with everything in two-byte numbers.",
        )
    )
    if len(held) == 2:
        ratio = held["told_naive"] / held["told_tiled"]
        found.conclude(
            f"At batch {batch}, {heads} heads, S = {length} naive attention held "
            f"{held['told_naive']:.0f} MB and tiled {held['told_tiled']:.0f} MB, {ratio:.0f}× less."
        )
